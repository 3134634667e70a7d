# Unity builds: one compiler run for several files of a folder reads their headers and makes their templates once.
option(KVSCOPE_UNITY "Compile several files of a folder at once: a whole build is faster, a build after a small change slower" OFF)

# Puts the .cpp files of the target into batches of at most `size`; no batch has files of two folders. A file with compile
# options or definitions of its own is compiled alone, and so are the folders and files behind ALONE. No batch has two of the files
# behind APART, whose names would meet. Release builds compile the batches of the folders behind FOLDERS at LEVEL, whatever the
# level of the target; builds without batches do not. LEVEL is not for a target with precompiled headers: GCC 12 ends with an
# internal error where these were made at another level.
function(kvscope_unity target size)
    if(NOT KVSCOPE_UNITY)
        return()
    endif()
    cmake_parse_arguments(arg "" "LEVEL" "ALONE;APART;FOLDERS" ${ARGN})
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    foreach(source IN LISTS sources)
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
        cmake_path(GET path PARENT_PATH folder)
        file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
        file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
        if(NOT folder IN_LIST arg_ALONE AND NOT name IN_LIST arg_ALONE)
            list(APPEND folders ${folder})
            if(name IN_LIST arg_APART)
                list(APPEND apart_${folder} ${source})
            else()
                list(APPEND files_${folder} ${source})
            endif()
        endif()
    endforeach()
    list(REMOVE_DUPLICATES folders)
    foreach(folder IN LISTS folders)
        set(files ${files_${folder}})
        list(LENGTH files count)
        list(LENGTH apart_${folder} apart_count)
        math(EXPR batches "(${count} + ${apart_count} + ${size} - 1) / ${size}")
        list(SUBLIST apart_${folder} 0 ${batches} apart) # a batch has one; what is left over is compiled alone
        set(index 0)
        foreach(file IN LISTS apart files)
            if(file IN_LIST apart)
                list(FIND apart ${file} batch)
            else()
                math(EXPR batch "${index} * ${batches} / ${count}") # batches of equal size
                math(EXPR index "${index} + 1")
            endif()
            string(MAKE_C_IDENTIFIER "${folder}_${batch}" group)
            set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${group})
            if(folder IN_LIST arg_FOLDERS) # the file that CMake writes for the batch
                set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/Unity/unity_${group}_cxx.cxx
                                            PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:${arg_LEVEL}>)
            endif()
        endforeach()
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    # GCC takes a file that is included for a header, whose anonymous namespace must not be in a type of others.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
