# embed-models.cmake - writes a C file that holds every file of share/models. The name of the table is declared in
# src/model/known.h.
#
#   cmake -DSOURCE=share/models -DOUT=model_data.c -P tools/embed-models.cmake

include(${CMAKE_CURRENT_LIST_DIR}/embed.cmake)
set(text "/* Made by tools/embed-models.cmake from share/models. */\n#include \"model/known.h\"\n\n")
file(GLOB names RELATIVE ${SOURCE} ${SOURCE}/*.json)
list(SORT names)
set(rows "")
set(n 0)
foreach(name ${names})
  embed(${SOURCE}/${name} models_${n} array)
  string(APPEND text "${array}")
  string(APPEND rows "    { \"${name}\", models_${n}, sizeof models_${n} - 1 },\n")
  math(EXPR n "${n} + 1")
endforeach()
string(APPEND text "const struct tr_known_file tr_known_files[] = {\n${rows}};\nconst size_t tr_n_known_files = ${n};\n")
file(WRITE ${OUT} "${text}")
