# Read by cpack once for each generator: the .deb leaves the libraries to the system's packages.
if(CPACK_GENERATOR STREQUAL "DEB")
    set(CPACK_COMPONENTS_ALL programs)
else()
    set(CPACK_COMPONENTS_ALL programs bundle)
    set(CPACK_PACKAGING_INSTALL_PREFIX "")
    set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
    set(CPACK_PACKAGE_FILE_NAME "kvscope-${CPACK_PACKAGE_VERSION}-linux-x86_64")
endif()
