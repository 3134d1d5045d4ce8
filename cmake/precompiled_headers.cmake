# Half of a file's compilation is reading fmt, nlohmann_json and GoogleTest. The rooms that link these share two precompiled
# headers: ljtrain_headers, and ljtrain_test_headers with GoogleTest.
set(ljtrain_common_headers
  <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <cstdint> <cstdlib> <cstring> <filesystem> <fstream> <functional>
  <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <utility>
  <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cc "")

add_library(ljtrain_headers OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
target_link_libraries(ljtrain_headers PRIVATE fmt::fmt nlohmann_json::nlohmann_json Threads::Threads)
target_precompile_headers(ljtrain_headers PRIVATE ${ljtrain_common_headers})
ljtrain_compile_options(ljtrain_headers)

if(LJTRAIN_TESTS)
  add_library(ljtrain_test_headers OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(ljtrain_test_headers PRIVATE
    fmt::fmt nlohmann_json::nlohmann_json Threads::Threads GTest::gtest)
  target_precompile_headers(ljtrain_test_headers PRIVATE ${ljtrain_common_headers} <gtest/gtest.h>)
  ljtrain_compile_options(ljtrain_test_headers)
  ljtrain_test_options(ljtrain_test_headers)
  # Tests are programs: the same flag as theirs, or the compiler will not take it.
  set_target_properties(ljtrain_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(ljtrain_test_headers PRIVATE -fPIE)
endif()
