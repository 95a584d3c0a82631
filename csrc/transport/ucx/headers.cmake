# Finds the headers of UCX 1.14 or newer, which building its network needs; the library itself is opened at run
# time. They come with the system's UCX, or in the package libucx of the Python at hand.
option(PYCOLL_UCX "Build the network over UCX where its headers are found" ON)
set(PYCOLL_UCX_INCLUDE_DIR "" CACHE PATH "Folder of ucp/api/ucp.h")
if(PYCOLL_UCX AND NOT PYCOLL_UCX_INCLUDE_DIR)
  # Where Python bindings are built, scikit-build-core names the Python. find_package(Python) here would keep
  # pybind11 from asking it for what it needs.
  set(ucx_python ${Python_EXECUTABLE})
  if(NOT ucx_python)
    find_program(ucx_python python3 NO_CACHE)
  endif()
  set(wheel_headers "")
  if(ucx_python)
    execute_process(
      COMMAND ${ucx_python} -c
        "from importlib.util import find_spec; s = find_spec('libucx'); print(s.submodule_search_locations[0] + '/include' if s else '')"
      OUTPUT_VARIABLE wheel_headers OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  # Not kept in the cache: a build environment of pip is gone at the next run.
  unset(found_ucx CACHE)
  find_path(found_ucx ucp/api/ucp.h HINTS ${wheel_headers} NO_CACHE)
  if(found_ucx)
    file(STRINGS ${found_ucx}/ucp/api/ucp_version.h ucx_version REGEX "UCP_API_(MAJOR|MINOR)")
    string(REGEX REPLACE ".*API_MAJOR +([0-9]+).*API_MINOR +([0-9]+).*" "\\1.\\2" ucx_version "${ucx_version}")
    if(ucx_version VERSION_GREATER_EQUAL 1.14)
      string(REGEX REPLACE "/$" "" PYCOLL_UCX_INCLUDE_DIR ${found_ucx})
      message(STATUS "UCX: headers ${ucx_version} in ${found_ucx}")
    else()
      message(STATUS "UCX: the headers in ${found_ucx} are of version ${ucx_version}; 1.14 is needed: built without")
    endif()
  else()
    message(STATUS "UCX: no headers (pip install libucx-cu12, or the system's): built without")
  endif()
endif()
