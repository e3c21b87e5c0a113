# The CUDA language for the kernels: sm_90a machine code ahead of time, the runtime linked statically. Included when LEVIN_CUDA is on.
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  find_program(LEVIN_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(LEVIN_NVCC)
    set(CMAKE_CUDA_COMPILER ${LEVIN_NVCC})
  endif()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "LEVIN_CUDA is on, but no nvcc was found. Install the CUDA toolkit 12.4 or newer, set CUDACXX to its nvcc, "
                      "or configure without LEVIN_CUDA.")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # named below: the a-suffix has no spelling here that every CMake we accept knows
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  message(FATAL_ERROR "LEVIN_CUDA needs nvcc 12.4 or newer, but ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}.")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# Flags of every target with device code. Contraction is off as on the host: fused multiply-adds are written out.
add_library(levin_cuda_flags INTERFACE)
target_compile_options(levin_cuda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a --fmad=false -lineinfo -Xptxas=--warn-on-spills>)

# A library or program with device code:  levin_cuda_target(NAME), after add_library or add_executable.
function(levin_cuda_target name)
  target_link_libraries(${name} PUBLIC levin_cuda_flags)
  set_target_properties(${name} PROPERTIES CUDA_SEPARABLE_COMPILATION OFF)
endfunction()
