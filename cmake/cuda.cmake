# The CUDA language for the kernels: machine code ahead of time, the runtime linked statically. Included when LEVIN_CUDA is on. The
# flags here are those of the tuned kernels, for sm_90a; src/kernels/cuda/plain names the architectures of the plain ones itself.
# Flags that all targets share are with levin_flags: contraction is off on the device as on the host.
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  find_program(LEVIN_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(LEVIN_NVCC)
    set(CMAKE_CUDA_COMPILER ${LEVIN_NVCC})
  endif()
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # named below: the a-suffix has no spelling here that every CMake we accept knows
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "LEVIN_CUDA is on, but no nvcc was found. Install the CUDA toolkit 12.4 or newer, set CUDACXX to its nvcc, "
                      "or configure without LEVIN_CUDA.")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  message(FATAL_ERROR "LEVIN_CUDA needs nvcc 12.4 or newer, but ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}.")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know yet how nvcc spells it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -gencode=arch=compute_90a,code=sm_90a -Xptxas=--warn-on-spills --expt-relaxed-constexpr")
