# Joins the page's sources to one HTML document and states which scripts and styles a browser may run of it:
#   cmake -D PAGE=page.html -D OUT=joined.html -D SOURCES=sources.txt -P join.cmake
#
# PAGE names its parts as any web page does, so that it also works unjoined from a folder: each line
#   <link rel="stylesheet" href="x.css">   becomes   <style>the text of x.css</style>
#   <script src="x.js"></script>           becomes   <script>the text of x.js</script>
# SOURCES gets the two directives of a Content-Security-Policy that admit these texts by their SHA-256 and no others.
cmake_minimum_required(VERSION 3.25)
get_filename_component(folder "${PAGE}" DIRECTORY)

# 32 bytes in hexadecimal as base64: three digits of one are two of the other.
function(base64_of_sha256 hex result)
  set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(APPEND hex "00")
  set(text "")
  foreach(at RANGE 0 63 3)
    string(SUBSTRING "${hex}" ${at} 3 digits)
    math(EXPR high "0x${digits} >> 6")
    math(EXPR low "0x${digits} & 63")
    string(SUBSTRING "${alphabet}" ${high} 1 first)
    string(SUBSTRING "${alphabet}" ${low} 1 second)
    string(APPEND text "${first}${second}")
  endforeach()
  string(SUBSTRING "${text}" 0 43 text)
  set(${result} "${text}=" PARENT_SCOPE)
endfunction()

# Puts the text of `name` between <tag> and </tag> in place of `reference` in `document`, and its hash into `<tag>_hashes`.
function(inline_part reference name tag)
  file(READ "${folder}/${name}" part)
  string(TOLOWER "${part}" lower_part)
  if(lower_part MATCHES "</${tag}|<!--")
    message(FATAL_ERROR "${folder}/${name} holds \"${CMAKE_MATCH_0}\", which would end or hide the <${tag}> it is put into")
  endif()
  string(SHA256 hash "${part}")
  base64_of_sha256(${hash} hash)
  set(${tag}_hashes "${${tag}_hashes} 'sha256-${hash}'" PARENT_SCOPE)
  string(REPLACE "${reference}" "<${tag}>${part}</${tag}>" document "${document}")
  set(document "${document}" PARENT_SCOPE)
endfunction()

file(READ "${PAGE}" document)
string(REGEX MATCHALL "<link rel=\"stylesheet\" href=\"[a-z_]+\\.css\">" styles "${document}")
string(REGEX MATCHALL "<script src=\"[a-z_]+\\.js\"></script>" scripts "${document}")
foreach(reference IN LISTS styles)
  string(REGEX REPLACE ".*href=\"(.*)\">" "\\1" name "${reference}")
  inline_part("${reference}" "${name}" style)
endforeach()
foreach(reference IN LISTS scripts)
  string(REGEX REPLACE ".*src=\"(.*)\"></script>" "\\1" name "${reference}")
  inline_part("${reference}" "${name}" script)
endforeach()

file(WRITE "${OUT}.new" "${document}")
file(COPY_FILE "${OUT}.new" "${OUT}" ONLY_IF_DIFFERENT)
file(WRITE "${SOURCES}.new" "script-src${script_hashes}; style-src${style_hashes}")
file(COPY_FILE "${SOURCES}.new" "${SOURCES}" ONLY_IF_DIFFERENT)
