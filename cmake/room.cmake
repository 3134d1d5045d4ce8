# Every room is built the same way: ljtrain_room(NAME SOURCES ... DEPENDS ...) makes the static library ljtrain_NAME with the
# room's include/ public, and, with LJTRAIN_TESTS, one test program from tests/*.cc.
function(ljtrain_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms in std::string of g++ 12 (GCC bug 105651).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(LJTRAIN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LJTRAIN_SANITIZE} -fno-omit-frame-pointer -g)
    target_link_options(${target} PRIVATE -fsanitize=${LJTRAIN_SANITIZE})
  endif()
endfunction()

# Tests spend their time in the rooms' libraries; optimising their own code costs a third of its compilation.
function(ljtrain_test_options target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# With LJTRAIN_PRECOMPILED_HEADERS, TARGET reads those of OWNER (precompiled_headers.cmake). accl and who uses it compile fmt in
# another way (header only), so they cannot share them.
function(ljtrain_reuse_headers target depends owner)
  if(LJTRAIN_PRECOMPILED_HEADERS AND NOT depends MATCHES "header-only|ljtrain_accl")
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

function(ljtrain_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(ljtrain_${name} STATIC ${ROOM_SOURCES})
  target_include_directories(ljtrain_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include)
  target_link_libraries(ljtrain_${name} PUBLIC ${ROOM_DEPENDS})
  ljtrain_compile_options(ljtrain_${name})
  ljtrain_reuse_headers(ljtrain_${name} "${ROOM_DEPENDS}" ljtrain_headers)
  if(LJTRAIN_TESTS)
    file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/*_test.cc)
    if(tests)
      add_executable(${name}_test ${tests})
      target_link_libraries(${name}_test PRIVATE ljtrain_${name} GTest::gtest GTest::gtest_main)
      target_include_directories(${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
      target_compile_definitions(${name}_test PRIVATE LJTRAIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
      ljtrain_compile_options(${name}_test)
      ljtrain_test_options(${name}_test)
      ljtrain_reuse_headers(${name}_test "${ROOM_DEPENDS}" ljtrain_test_headers)
      include(GoogleTest)
      gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120)
    endif()
  endif()
endfunction()
