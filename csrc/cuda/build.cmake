# _cuda.so: the CUDA kernels behind a C interface, opened on demand; loading it needs no driver. PYCOLL_CUDA: ON (an error without nvcc), AUTO (built where nvcc is found) or OFF.
set(PYCOLL_CUDA OFF CACHE STRING "Build the CUDA part: ON, AUTO (where nvcc is found) or OFF")
option(PYCOLL_CUDA_REPORT "Print what registers kernels use (benchmarks/gpu_registers.py reads it)" OFF)
set(PYCOLL_CUDA_ARCHITECTURES "" CACHE STRING "As CMAKE_CUDA_ARCHITECTURES; by default what nvcc knows of 80, 90, 100")
if(NOT PYCOLL_CUDA STREQUAL "AUTO" AND NOT PYCOLL_CUDA)
  message(STATUS "pycoll: the CUDA part is not built (PYCOLL_CUDA is ${PYCOLL_CUDA}; it takes minutes)")
  return()
endif()

# nvcc's default prefix is often not on PATH.
find_program(PYCOLL_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
if(NOT PYCOLL_NVCC)
  if(PYCOLL_CUDA STREQUAL "AUTO")
    message(STATUS "pycoll: the CUDA part is not built (no nvcc; set CUDA_HOME)")
    return()
  endif()
  message(FATAL_ERROR "PYCOLL_CUDA=${PYCOLL_CUDA}, but there is no nvcc: put it on PATH or set CUDA_HOME")
endif()

set(architectures ${PYCOLL_CUDA_ARCHITECTURES})
if(NOT architectures)
  execute_process(COMMAND ${PYCOLL_NVCC} --list-gpu-arch OUTPUT_VARIABLE known OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" known "${known}")
  foreach(number 80 90 100)
    if("compute_${number}" IN_LIST known)
      list(APPEND architectures ${number})
    endif()
  endforeach()
  # Machine code for each; of the newest also PTX, for what comes after it.
  list(POP_BACK architectures newest)
  list(TRANSFORM architectures APPEND -real)
  list(APPEND architectures ${newest})
endif()
set(CMAKE_CUDA_COMPILER ${PYCOLL_NVCC})
set(CMAKE_CUDA_ARCHITECTURES ${architectures})
enable_language(CUDA)
message(STATUS "pycoll: the CUDA part is built by ${PYCOLL_NVCC} for ${architectures}")

file(GLOB cuda_sources CONFIGURE_DEPENDS csrc/cuda/*.cu)
add_library(_cuda MODULE ${cuda_sources})
target_link_libraries(_cuda PRIVATE pycoll)
set_target_properties(_cuda PROPERTIES PREFIX "" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Static
                      CUDA_ARCHITECTURES "${architectures}" CUDA_VISIBILITY_PRESET hidden INSTALL_RPATH "$ORIGIN")
# No fused multiply-add: premul_sum and avg have the bits that processors without it give.
target_compile_options(_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                                     $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>
                                     $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${PYCOLL_CUDA_REPORT}>>:-Xptxas=-v>)
if(PYCOLL_PYTHON)
  install(TARGETS _cuda LIBRARY DESTINATION pycoll)
endif()
