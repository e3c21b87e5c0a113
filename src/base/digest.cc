#include "base/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace levin {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr std::array<uint32_t, 64> kRoots = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<uint32_t>(bytes[i]);
  return value;
}

}  // namespace

void Sha256::take_block(const std::byte* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoots[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> sums = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += sums[i];
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  n_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), pending_.size() - n_pending_);
    std::copy_n(bytes.begin(), n, pending_.begin() + static_cast<int64_t>(n_pending_));
    n_pending_ += n;
    bytes = bytes.subspan(n);
    if (n_pending_ < pending_.size()) break;
    take_block(pending_.data());
    n_pending_ = 0;
  }
  return *this;
}

Sha256& Sha256::add_number(uint64_t value) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  return add(bytes);
}

Digest Sha256::finish() {
  const uint64_t n_bits = 8 * n_bytes_;
  add(std::array{std::byte{0x80}});
  while (n_pending_ != 56) add(std::array{std::byte{0}});
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(n_bits >> (56 - 8 * i));
  add(length);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string hex(std::span<const std::byte> bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<size_t>(b) >> 4];
    text += kDigits[std::to_integer<size_t>(b) & 15];
  }
  return text;
}

// Eight lanes, so that the multiplications overlap. Each word enters its lane by steps that can be undone (sum, product
// with an odd number, rotation), so two inputs that differ in one word end in different lanes; the products before and
// after the sum spread a difference over many bits, so that a second one does not cancel it.
uint64_t checksum64(std::span<const std::byte> bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;    // 2^64 over the golden ratio
  constexpr uint64_t kOther = 0xc90fdaa22168c235;  // the digits of pi
  constexpr size_t kLanes = 8;
  std::array<uint64_t, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = kOdd * (i + 1) ^ bytes.size();
  const auto take = [&](const std::byte* from, size_t n) {
    std::array<uint64_t, kLanes> words = {};
    std::memcpy(words.data(), from, n);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = std::rotl(lanes[i] + words[i] * kOther, 31) * kOdd;
  };
  constexpr size_t kBlock = sizeof(lanes);
  size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) take(bytes.data() + at, kBlock);
  if (at < bytes.size()) take(bytes.data() + at, bytes.size() - at);
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum = std::rotl(sum ^ (lane ^ lane >> 32) * kOther, 27) * kOdd;
  return sum ^ sum >> 29;
}

}  // namespace levin
