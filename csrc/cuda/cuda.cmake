# FLASHBERTSCORE_CUDA=AUTO builds the CUDA kernels where nvcc is found, ON insists, OFF leaves them
# out; FLASHBERTSCORE_CUDA_ARCHITECTURES is CMake's list of targets. Both can also be set in the
# environment. FLASHBERTSCORE_EMULATED=ON builds the module that runs the kernels on the CPU.
function(flashbertscore_option name default help)
  if(DEFINED ENV{${name}})
    set(default "$ENV{${name}}")
  endif()
  set(${name} "${default}" CACHE STRING "${help}")
endfunction()

flashbertscore_option(FLASHBERTSCORE_CUDA AUTO "CUDA kernels: AUTO, ON or OFF")
flashbertscore_option(FLASHBERTSCORE_CUDA_ARCHITECTURES "80-real;90" "GPU targets")
flashbertscore_option(FLASHBERTSCORE_EMULATED OFF "the CUDA kernels on a CPU, for tests")

set(FLASHBERTSCORE_CUDA_VERSION "")
set(FLASHBERTSCORE_CUDA_TARGETS "")
file(GLOB FLASHBERTSCORE_CUDA_SOURCES CONFIGURE_DEPENDS csrc/cuda/*.cu)

if(FLASHBERTSCORE_CUDA)
  include(CheckLanguage)
  # Read by the compiler check too, whose own default a new nvcc may no longer know.
  set(CMAKE_CUDA_ARCHITECTURES "${FLASHBERTSCORE_CUDA_ARCHITECTURES}")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake before 3.26
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    endif()
    set(FLASHBERTSCORE_CUDA_VERSION "${CMAKE_CUDA_COMPILER_VERSION}")
  elseif(NOT FLASHBERTSCORE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "FLASHBERTSCORE_CUDA=${FLASHBERTSCORE_CUDA}, and no nvcc: put it on PATH "
      "or in CUDACXX, or build with FLASHBERTSCORE_CUDA=OFF")
  endif()
endif()

if(FLASHBERTSCORE_CUDA_VERSION)
  add_library(flashbertscore_cuda STATIC ${FLASHBERTSCORE_CUDA_SOURCES})
  target_include_directories(flashbertscore_cuda PUBLIC csrc)
  set_target_properties(flashbertscore_cuda PROPERTIES
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static)
  # No contraction, as in the CPU kernels: fused products are spelled out, so that one number has
  # the same bits in every kernel.
  target_compile_options(flashbertscore_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(flashbertscore_cuda PUBLIC CUDA::cudart_static)
  target_link_libraries(_core PRIVATE flashbertscore_cuda)
  foreach(target ${FLASHBERTSCORE_CUDA_ARCHITECTURES})
    string(REGEX MATCH "^[0-9]+[a-z]?" number "${target}")
    if(NOT target MATCHES "-virtual$")
      string(APPEND FLASHBERTSCORE_CUDA_TARGETS "sm_${number} ")
    endif()
    if(NOT target MATCHES "-real$")
      string(APPEND FLASHBERTSCORE_CUDA_TARGETS "compute_${number} ")
    endif()
  endforeach()
  target_compile_definitions(_core PRIVATE
    FLASHBERTSCORE_CUDA_VERSION="${FLASHBERTSCORE_CUDA_VERSION}"
    FLASHBERTSCORE_CUDA_TARGETS="${FLASHBERTSCORE_CUDA_TARGETS}")
endif()
message(STATUS "CUDA kernels: ${FLASHBERTSCORE_CUDA_VERSION} ${FLASHBERTSCORE_CUDA_TARGETS}")

if(FLASHBERTSCORE_EMULATED)
  # The same files as C++; a file can have one language only, so each gets a name of its own.
  set(emulated_sources csrc/emulation/block.cpp csrc/emulation/fiber.cpp csrc/emulation/matrix.cpp)
  foreach(source ${FLASHBERTSCORE_CUDA_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    file(CONFIGURE OUTPUT emulated/${name}.cpp CONTENT "#include \"${source}\"\n")
    list(APPEND emulated_sources ${CMAKE_CURRENT_BINARY_DIR}/emulated/${name}.cpp)
  endforeach()
  pybind11_add_module(_emulated MODULE csrc/bindings/emulated.cpp ${emulated_sources})
  target_include_directories(_emulated PRIVATE csrc)
  target_compile_definitions(_emulated PRIVATE FLASHBERTSCORE_EMULATED)
  target_compile_options(_emulated PRIVATE -Wno-unknown-pragmas -ffp-contract=off)
  install(TARGETS _emulated DESTINATION flashbertscore)
endif()
