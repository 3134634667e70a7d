# Warnings for our own targets; private to each, so they are not our users' problem.
add_library(kvscope_warnings INTERFACE)
add_library(kvscope::warnings ALIAS kvscope_warnings)
target_compile_options(kvscope_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wpedantic -Wnon-virtual-dtor -Woverloaded-virtual>)
# GCC 12 reports overlaps in std::string's own copies (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(kvscope_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(KVSCOPE_WERROR)
    target_compile_options(kvscope_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
