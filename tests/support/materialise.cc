// Writes the checkpoint of a fixture (see support/fixture.h).   usage: materialise FIXTURE_DIR OUT_DIR
#include <cstdio>

#include "support/fixture.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: materialise FIXTURE_DIR OUT_DIR\n");
    return 2;
  }
  const levin::Status status = levin::test::materialise(argv[1], argv[2]);
  if (!status.ok()) {
    std::fprintf(stderr, "materialise: %s\n", status.error().message.c_str());
    return status.error().exit_code();
  }
  return 0;
}
