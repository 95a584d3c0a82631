# Each kernels_*.cpp is compiled for its own instruction set; reduce.cpp picks one at run time. Contraction to fused
# multiply-add is off everywhere, so that every set gives the same bits. Hidden: a kernel calls its parts directly, not
# through the table of a shared library.
set(kernel_options -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fvisibility=hidden)
set_source_files_properties(csrc/reduce/kernels_baseline.cpp PROPERTIES COMPILE_OPTIONS "${kernel_options}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(avx2_options -mavx2 -mf16c)
  set(avx512_options ${avx2_options} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 warns of its own intrinsics, which leave the masked-off source of an unmasked operation undefined.
    list(APPEND avx512_options -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  set_source_files_properties(
    csrc/reduce/kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS "${kernel_options};${avx2_options}")
  set_source_files_properties(
    csrc/reduce/kernels_avx512.cpp PROPERTIES COMPILE_OPTIONS "${kernel_options};${avx512_options}")
endif()
file(GLOB kernel_sources csrc/reduce/kernels_*.cpp)
set_source_files_properties(${kernel_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)  # for their own options
