# Writes OUTPUT, a C++ source that holds every *.json of the folder PROFILES, so that planning needs no file at run time. Run
# by the build: cmake -DPROFILES=... -DOUTPUT=... -P embed_profiles.cmake
file(GLOB files ${PROFILES}/*.json)
list(SORT files)
# Compilers limit the length of one string literal; neighbouring ones join.
set(piece_length 15000)
set(entries "")
foreach(file ${files})
  get_filename_component(family ${file} NAME_WLE)
  file(READ ${file} content)
  if(content MATCHES "\\)json\"")
    message(FATAL_ERROR "${file} contains )json\", which would end the C++ string that holds it")
  endif()
  string(LENGTH "${content}" length)
  set(pieces "")
  set(start 0)
  while(start LESS length)
    string(SUBSTRING "${content}" ${start} ${piece_length} piece)
    string(APPEND pieces "R\"json(${piece})json\"\n")
    math(EXPR start "${start} + ${piece_length}")
  endwhile()
  string(APPEND entries "    {\"${family}\", ${pieces}},\n")
endforeach()
file(WRITE ${OUTPUT} "// Written by cmake/embed_profiles.cmake from recompute/profiles/*.json.
#include \"embedded_profiles.h\"

namespace ljtrain::recompute {

std::span<const EmbeddedProfile> embedded_profiles() {
  // Not constexpr: compilers limit how long a string they measure.
  static const EmbeddedProfile kProfiles[] = {
${entries}      {\"\", \"\"}};
  return std::span(kProfiles).first(std::size(kProfiles) - 1);
}

}  // namespace ljtrain::recompute
")
