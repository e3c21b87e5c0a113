# Writes TEXT, a text file, as the definition of a function that returns it:
#   cmake -D TEXT=page.html -D OUT=page_html.cc -D HEADER=serve/page_document.h -D FUNCTION=levin::serve::page_html -P embed.cmake
file(READ "${TEXT}" text)
string(FIND "${text}" ")embedded\"" end_mark)
if(NOT end_mark EQUAL -1)
  message(FATAL_ERROR "${TEXT} holds the mark that is to end it")
endif()
get_filename_component(name "${TEXT}" NAME)
file(WRITE "${OUT}.new"
  "// Made of ${name} by embed.cmake.\n#include \"${HEADER}\"\n\n"
  "std::string_view ${FUNCTION}() { return R\"embedded(${text})embedded\"; }\n")
file(COPY_FILE "${OUT}.new" "${OUT}" ONLY_IF_DIFFERENT)
