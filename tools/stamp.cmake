# stamp.cmake - writes module_stamp.h: a hash over the names and contents of the sources that the program shares with its modules. The file
# is left alone where the hash is the same.
#   cmake -DFILES="a.h;b.h" -DSOURCE=DIR -DOUT=module_stamp.h -P stamp.cmake
set(all "")
foreach(file ${FILES})
  file(SHA256 ${SOURCE}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 16 hash)
set(text "#define TR_MODULE_HASH \"${hash}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUT} "${text}")
endif()
