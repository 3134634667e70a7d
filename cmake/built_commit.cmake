# Writes the commit of a source tree into a header, and leaves the header alone where it says so already.
# cmake -DGIT=git -DSOURCE=FOLDER -DHEADER=FILE -P built_commit.cmake
# The text has forty digits, with + behind them where sources differ from that commit, and is empty where git cannot tell.
set(commit "")
if(GIT)
    execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix OUTPUT_VARIABLE prefix RESULT_VARIABLE failed
                    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(failed EQUAL 0 AND prefix STREQUAL "") # and not a folder of some other repository
        execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse HEAD OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
        execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain -- base kernels core profiler bench app/bench cmake
                                CMakeLists.txt :!bench/results
                        OUTPUT_VARIABLE changes ERROR_QUIET)
        if(changes)
            string(APPEND commit "+")
        endif()
    endif()
endif()
set(text "// Written by cmake/built_commit.cmake.\n#pragma once\ninline constexpr char kBuiltCommit[] = \"${commit}\";\n")
set(before "")
if(EXISTS ${HEADER})
    file(READ ${HEADER} before)
endif()
if(NOT text STREQUAL before)
    file(WRITE ${HEADER} "${text}")
endif()
