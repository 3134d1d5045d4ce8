# Writes OUTPUT, a C++ source that holds every releases/*.json and facts/cuda_driver.csv of the folder SOURCE, so that the
# program needs no file at run time. Run by the build: cmake -DSOURCE=... -DOUTPUT=... -P embed_facts.cmake
file(GLOB files ${SOURCE}/releases/*.json)
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
file(READ ${SOURCE}/facts/cuda_driver.csv table)
file(WRITE ${OUTPUT} "// Written by cmake/embed_facts.cmake from releases/*.json and facts/cuda_driver.csv.
#include \"embedded.h\"

namespace ljtrain::image {
namespace {

constexpr EmbeddedRelease kReleases[] = {
${entries}};

constexpr std::string_view kDriverTable = R\"csv(${table})csv\";

}  // namespace

std::span<const EmbeddedRelease> embedded_releases() { return kReleases; }
std::string_view embedded_driver_table() { return kDriverTable; }

}  // namespace ljtrain::image
")
