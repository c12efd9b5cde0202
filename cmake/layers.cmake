# layers.cmake: mcpg_layer() makes one layer's static library; mcpg_test() one cmocka test program. Never holds a list of sources.

add_library(mcpg_flags INTERFACE)
target_compile_definitions(mcpg_flags INTERFACE _GNU_SOURCE)
if(MCPG_MAX_RANKS)
    target_compile_definitions(mcpg_flags INTERFACE MCPG_MAX_RANKS=${MCPG_MAX_RANKS})
endif()
target_compile_options(mcpg_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Werror -Wshadow -Wvla -Wconversion -Wno-sign-conversion -Wswitch-enum -Wpointer-arith
        -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wformat=2 -fno-common -fstack-protector-strong>)
if(MCPG_SANITIZE)
    target_compile_options(mcpg_flags INTERFACE -fsanitize=${MCPG_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g)
    target_link_options(mcpg_flags INTERFACE -fsanitize=${MCPG_SANITIZE})
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(mcpg_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>)
endif()

set(MCPG_COVERAGE "" CACHE STRING "layers whose covered lines and branches are counted, e.g. mcpg_coord_core;mcpg_agent_core")

# mcpg_layer(name FOLDER folder SOURCES a.c b.c SEES common rpc LIBS targets): SEES are the folders of src/ it may include besides its own.
function(mcpg_layer name)
    cmake_parse_arguments(L "" "FOLDER" "SOURCES;SEES;LIBS" ${ARGN})
    add_library(${name} STATIC ${L_SOURCES})
    target_link_libraries(${name} PUBLIC mcpg_flags ${L_LIBS})
    set(view ${CMAKE_BINARY_DIR}/include-of/${name})
    file(MAKE_DIRECTORY ${view})
    foreach(folder ${L_FOLDER} ${L_SEES})
        file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${folder} ${view}/${folder} SYMBOLIC)
    endforeach()
    target_include_directories(${name} PRIVATE ${view} ${CMAKE_SOURCE_DIR}/include)
    if(name IN_LIST MCPG_COVERAGE)
        target_compile_options(${name} PRIVATE --coverage -fprofile-abs-path -fprofile-update=atomic -O0)
        target_link_options(${name} PUBLIC --coverage)
    endif()
endfunction()

# mcpg_test(name LABEL unit SOURCES test_x.c LIBS mcpg_common [TIMEOUT 180]): tests may include every layer.
function(mcpg_test name)
    cmake_parse_arguments(T "" "LABEL;TIMEOUT" "SOURCES;LIBS" ${ARGN})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 180)
    endif()
    add_executable(${name} ${T_SOURCES})
    target_link_libraries(${name} PRIVATE mcpg_flags ${T_LIBS} PkgConfig::CMOCKA Threads::Threads)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT})
endfunction()

# A step machine's archive may refer to nothing but these: no clock, lock, allocation, I/O or log.
function(mcpg_prove_pure target)
    add_custom_command(TARGET ${target} POST_BUILD
        COMMAND ${CMAKE_COMMAND} -E env NM=${CMAKE_NM} ${CMAKE_SOURCE_DIR}/tests/tidy/check_pure.sh $<TARGET_FILE:${target}>
        COMMENT "checking that ${target} is pure" VERBATIM)
endfunction()
