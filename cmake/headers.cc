// Nothing but the headers that others precompile (levin_headers in CMakeLists.txt).
