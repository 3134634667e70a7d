# What `cmake --install` and `cpack` put where. Two packages are made of one build (tools/make_packages.sh): a .deb, and an archive
# that holds Qt and every other library, so that it starts where nothing is installed.
#   programs   what users start, the models, desktop file, icon, MIME type, AppStream, man pages, completion, licences
#   bundle     the libraries; in the archive alone
#   sdk        libkvscope_trace for programs that record (sdk/trace)
set(desktop_files ${PROJECT_SOURCE_DIR}/resources/desktop)
include(GNUInstallDirs)

if(KVSCOPE_PACKAGE)
    # The path of a program (DT_RPATH) is also searched for what its libraries and Qt's plugins need; DT_RUNPATH would not be.
    foreach(program kvscope kvscope-cli)
        if(TARGET ${program})
            set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/kvscope")
            target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
        endif()
    endforeach()
endif()

install(TARGETS kvscope-cli RUNTIME DESTINATION bin COMPONENT programs)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/resources/models DESTINATION share/kvscope COMPONENT programs)
install(FILES ${desktop_files}/kvscope-cli.bash DESTINATION share/bash-completion/completions RENAME kvscope-cli COMPONENT programs)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/docs/third-party.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION share/doc/kvscope COMPONENT programs)
if(KVSCOPE_UI)
    install(TARGETS kvscope RUNTIME DESTINATION bin COMPONENT programs)
    string(TIMESTAMP date %Y-%m-%d UTC)
    configure_file(${desktop_files}/kvscope.metainfo.xml kvscope.metainfo.xml @ONLY)
    install(FILES ${desktop_files}/kvscope.desktop DESTINATION share/applications COMPONENT programs)
    install(FILES ${desktop_files}/kvscope-mime.xml DESTINATION share/mime/packages RENAME kvscope.xml COMPONENT programs)
    install(FILES ${desktop_files}/kvscope.svg DESTINATION share/icons/hicolor/scalable/apps COMPONENT programs)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvscope.metainfo.xml DESTINATION share/metainfo COMPONENT programs)
endif()
if(NOT KVSCOPE_PACKAGE)
    return()
endif()

# A man page for each program and subcommand, of what it prints with --help.
find_program(HELP2MAN_PROGRAM help2man)
if(HELP2MAN_PROGRAM)
    set(pages ${CMAKE_CURRENT_BINARY_DIR}/man)
    install(CODE "execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/make_man_pages.sh ${CMAKE_CURRENT_BINARY_DIR}/app ${pages}
                                  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT programs)
    install(DIRECTORY ${pages}/ DESTINATION share/man/man1 COMPONENT programs)
else()
    message(STATUS "Packages hold no man pages: help2man was not found (apt: help2man)")
endif()

# What the programs and Qt's plugins load, but for the C library and its kin, which come with every system.
if(KVSCOPE_UI)
    get_target_property(qmake Qt6::qmake IMPORTED_LOCATION)
    execute_process(COMMAND ${qmake} -query QT_INSTALL_PLUGINS OUTPUT_VARIABLE plugins OUTPUT_STRIP_TRAILING_WHITESPACE)
    foreach(kind platforms imageformats iconengines printsupport platformthemes xcbglintegrations wayland-shell-integration)
        file(GLOB found ${plugins}/${kind}/*.so)
        list(FILTER found EXCLUDE REGEX "qgtk3|qgif|qwebgl|eglfs|linuxfb|vnc")
        list(APPEND plugin_files ${found})
        install(FILES ${found} DESTINATION lib/kvscope/plugins/${kind} COMPONENT bundle)
    endforeach()
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/qt.conf "[Paths]\nPrefix = ..\nPlugins = lib/kvscope/plugins\n")
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qt.conf DESTINATION bin COMPONENT bundle)
endif()
install(CODE "
    file(GET_RUNTIME_DEPENDENCIES RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
         EXECUTABLES $<TARGET_FILE:kvscope-cli> $<$<BOOL:${KVSCOPE_UI}>:$<TARGET_FILE:kvscope>>
         MODULES ${plugin_files}
         PRE_EXCLUDE_REGEXES \"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\\\\+\\\\+))\\\\.so\")
    if(missing)
        message(FATAL_ERROR \"The archive would lack \${missing}\")
    endif()
    file(INSTALL \${found} DESTINATION \${CMAKE_INSTALL_PREFIX}/lib/kvscope FOLLOW_SYMLINK_CHAIN)
" COMPONENT bundle)

set(CPACK_PACKAGE_NAME kvscope)
set(CPACK_PACKAGE_VENDOR "The KVScope authors")
set(CPACK_PACKAGE_CONTACT "The KVScope authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB TXZ)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_options.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_THREADS 0)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "${PROJECT_DESCRIPTION}
 KVScope runs long-context decode sessions under sparse-attention methods that
 keep the KV cache in host memory, and shows what each step selected, found,
 fetched and waited for. It needs no GPU; with an NVIDIA driver it uses one.")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "fonts-dejavu-core")
# Each package that dpkg-shlibdeps finds on Debian 12, with its name on Ubuntu 24.04 beside it where that differs.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.34), libstdc++6 (>= 12), libgcc-s1, libfmt9, libhwy1 | libhwy1t64, libpcre2-8-0, \
libsqlite3-0, zlib1g, libqt6core6 (>= 6.4) | libqt6core6t64, libqt6gui6 (>= 6.4) | libqt6gui6t64, \
libqt6widgets6 (>= 6.4) | libqt6widgets6t64, libqt6printsupport6 (>= 6.4) | libqt6printsupport6t64, libqt6svg6 (>= 6.4) | libqt6svg6t64, \
libqcustomplot2.1-qt6 | libqcustomplot2.1-qt6t64")
include(CPack)
