// Nothing but the headers that tests precompile (CMakeLists.txt).
int main() {}
