# embed-dashboard.cmake - writes a C file that holds the page of trireme watch, so that a single binary serves it wherever it is
# carried. The table is declared in src/watch/watch.h; index.html comes first.
#
#   cmake -DSOURCE=share/dashboard -DOUT=dashboard_data.c -P tools/embed-dashboard.cmake
include(${CMAKE_CURRENT_LIST_DIR}/embed.cmake)

set(text "/* Made by tools/embed-dashboard.cmake from share/dashboard. */\n#include \"watch/watch.h\"\n\n")
set(rows "")
set(n 0)
foreach(name index.html style.css util.js chart.js panels.js app.js)
  embed(${SOURCE}/${name} asset_${n} array)
  string(APPEND text "${array}")
  if(name MATCHES "html$")
    set(type "text/html; charset=utf-8")
  elseif(name MATCHES "css$")
    set(type "text/css; charset=utf-8")
  else()
    set(type "text/javascript; charset=utf-8")
  endif()
  string(APPEND rows "    { \"${name}\", \"${type}\", asset_${n}, sizeof asset_${n} - 1 },\n")
  math(EXPR n "${n} + 1")
endforeach()
string(APPEND text "const struct tr_asset tr_assets[] = {\n${rows}};\nconst size_t tr_n_assets = ${n};\n")
file(WRITE ${OUT} "${text}")
