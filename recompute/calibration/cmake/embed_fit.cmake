# Writes OUTPUT, a C++ source that holds the JSON of FIT, so that planning needs no file at run time. Run by the build:
# cmake -DFIT=... -DOUTPUT=... -P embed_fit.cmake
file(READ ${FIT} content)
if(content MATCHES "\\)json\"")
  message(FATAL_ERROR "${FIT} contains )json\", which would end the C++ string that holds it")
endif()
# Compilers limit the length of one string literal; neighbouring ones join.
set(piece_length 15000)
string(LENGTH "${content}" length)
set(pieces "")
set(start 0)
while(start LESS length)
  string(SUBSTRING "${content}" ${start} ${piece_length} piece)
  string(APPEND pieces "R\"json(${piece})json\"\n")
  math(EXPR start "${start} + ${piece_length}")
endwhile()
file(WRITE ${OUTPUT} "// Written by cmake/embed_fit.cmake.
#include \"embedded_fit.h\"

namespace ljtrain::recompute {

std::string_view embedded_fit() {
  return ${pieces};
}

}  // namespace ljtrain::recompute
")
