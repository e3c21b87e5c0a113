#include "base/digest.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace levin {
namespace {

std::string sha256(const std::string& text) { return hex(Sha256().add(text).finish()); }

// The examples of FIPS 180-4 and of its author's test vectors.
TEST(DigestTest, Sha256OfKnownTexts) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(DigestTest, Sha256TakesPiecesOfAnyLength) {
  const std::string text(300, 'x');
  for (size_t cut = 0; cut <= text.size(); cut += 7) {
    EXPECT_EQ(hex(Sha256().add(text.substr(0, cut)).add(text.substr(cut)).finish()), sha256(text)) << cut;
  }
  EXPECT_EQ(hex(Sha256().add_number(0x0807060504030201).finish()), sha256("\x01\x02\x03\x04\x05\x06\x07\x08"));
}

TEST(DigestTest, ChecksumNoticesEveryBit) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(203);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  std::set<uint64_t> seen = {checksum64(bytes)};
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_TRUE(seen.insert(checksum64(bytes)).second) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_TRUE(seen.insert(checksum64(std::span(bytes).first(n))).second) << n;
  EXPECT_NE(checksum64(std::vector<std::byte>(64)), checksum64(std::vector<std::byte>(128)));
}

}  // namespace
}  // namespace levin
