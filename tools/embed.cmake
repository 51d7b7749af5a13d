# embed.cmake - a file as a C array, for the scripts that put share/ into the binary.

# One array of bytes, closed by a zero. Bytes and not a string: a C compiler need not take strings of more than 4095 bytes.
function(embed path array out)
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  set(${out} "static const char ${array}[] = { ${bytes}0 };\n" PARENT_SCOPE)
endfunction()
