# embed-machines.cmake - writes a C file that holds every file of share/machines, so that a single binary knows them wherever
# it is carried. The names of the arrays are declared in src/plan/machine_impl.h.
#
#   cmake -DSOURCE=share/machines -DOUT=machine_data.c -P tools/embed-machines.cmake

include(${CMAKE_CURRENT_LIST_DIR}/embed.cmake)
set(text "/* Made by tools/embed-machines.cmake from share/machines. */\n#include \"plan/machine_impl.h\"\n\n")
foreach(kind chip cluster)
  file(GLOB names RELATIVE ${SOURCE}/${kind}s ${SOURCE}/${kind}s/*.yaml)
  list(TRANSFORM names REPLACE "\\.yaml$" "")
  list(SORT names) # without .yaml, so that H100-80GB comes before H100-80GB-PCIe
  set(rows "")
  set(n 0)
  foreach(name ${names})
    embed(${SOURCE}/${kind}s/${name}.yaml ${kind}_${n} array)
    string(APPEND text "${array}")
    string(APPEND rows "    { \"${name}\", ${kind}_${n} },\n")
    math(EXPR n "${n} + 1")
  endforeach()
  string(APPEND text "const struct tr_machine_file tr_${kind}_files[] = {\n${rows}};\nconst size_t tr_n_${kind}_files = ${n};\n")
endforeach()
embed(${SOURCE}/usual.yaml usual array)
string(APPEND text "${array}const struct tr_machine_file tr_usual_file = { \"usual\", usual };\n")
file(WRITE ${OUT} "${text}")
