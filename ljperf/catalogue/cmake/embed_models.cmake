# Writes OUTPUT, a C++ source that holds every models/*.json of the folder MODELS, so that the program needs no file at run
# time. Run by the build: cmake -DMODELS=... -DOUTPUT=... -P embed_models.cmake
file(GLOB files ${MODELS}/*.json)
list(SORT files)
set(entries "")
foreach(file ${files})
  get_filename_component(id ${file} NAME)
  string(REGEX REPLACE "\\.json$" "" id ${id})
  file(READ ${file} content)
  if(content MATCHES "\\)json\"")
    message(FATAL_ERROR "${file} contains )json\", which would end the C++ string that holds it")
  endif()
  string(APPEND entries "    {\"${id}\", R\"json(${content})json\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Written by cmake/embed_models.cmake from models/*.json.
#include \"catalogue/catalogue.h\"

namespace ljtrain::ljperf {
namespace {

constexpr CatalogueModel kModels[] = {
${entries}};

}  // namespace

std::span<const CatalogueModel> catalogue_models() { return kModels; }

}  // namespace ljtrain::ljperf
")
