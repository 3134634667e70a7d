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

# A number that changes its sign without a cast is an error in the folders that cmake/sign_conversion names, wherever warnings
# are errors. A target whose folders are all named has the option as a whole, in unity builds too; of other targets single files
# have it, but not in unity builds, where an option of its own would take a file out of its batch.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/sign_conversion sign_folders REGEX "^[a-z]")
function(kvscope_check_signs target)
    if(NOT KVSCOPE_WERROR)
        return()
    endif()
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    foreach(source IN LISTS sources)
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
        cmake_path(GET path PARENT_PATH folder)
        file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
        if(folder IN_LIST sign_folders)
            list(APPEND clean ${source})
        endif()
    endforeach()
    if(clean STREQUAL sources)
        target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wsign-conversion>)
    elseif(NOT KVSCOPE_UNITY)
        set_property(SOURCE ${clean} APPEND PROPERTY COMPILE_OPTIONS -Wsign-conversion)
    endif()
endfunction()
