// Cache pages on disk: prefixes that outlive the process, so that a server that is started again goes on from them. A
// page is the record of a block of tokens (kv/cache.h) with the state behind its last one.
//
//   DIR/lock                      held while a store is open: a folder serves one process at a time
//   DIR/<fingerprint>/<page>      a file a page (docs/kv_format.md); one folder for each model, numerics, kernel set and
//                                 layout, so that rows of another can not be met
//
// A page is found by its key, which stands for all tokens up to its end: SHA-256 of the key before it and its own tokens.
// The file repeats tokens and fingerprint and ends with a checksum; what does not agree to the last byte is removed,
// with one line to `note`, and is as good as absent. A file appears under its name whole or not at all, whenever the
// process or the machine dies.
//
// Budget    max_bytes for all of DIR. What was used least recently goes first, and the pages after one before it: a use
//           counts for a whole path, end first. Times of use are kept as the files' times of modification
// Threads   one thread calls; a thread of the store's own writes and removes. What is to be written waits in memory, up
//           to max_queued_bytes; pages beyond are not stored, and none that follow them
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "kv/block_key.h"

namespace levin {

struct PageStoreOptions {
  std::filesystem::path folder;  // made if it is not there
  int64_t max_bytes = 0;
  Digest fingerprint = {};  // of all that rows depend on besides tokens
  int64_t n_tokens = 0;     // of a page
  int64_t n_row_bytes = 0;  // of a page's record
  int64_t n_state = 0;      // floats that stand beside it (kv/shared_pages.h, ResumeState)
  int64_t max_queued_bytes = int64_t{256} << 20;
  std::function<void(const std::string& line)> note;  // from any thread; may be empty
};

// What a page stands for.
struct BlockPlace {
  BlockKey before = {};             // key of the page before it; first_key() for the first
  std::span<const int32_t> tokens;  // n_tokens
};
// What is in it.
struct BlockRecord {
  std::vector<float> state;     // n_state
  std::vector<std::byte> rows;  // n_row_bytes
};

struct PageStoreCounts {
  int64_t n_pages = 0;  // of this model
  int64_t n_bytes = 0;  // of all files
  int64_t n_read = 0;   // pages since the start, as all below
  int64_t n_written = 0;
  int64_t n_removed = 0;  // to stay within the budget
  int64_t n_refused = 0;  // damaged
  int64_t n_dropped = 0;  // not stored, because the disk was behind or would not take them
};

class PageStore {
 public:
  // Errors (kUsage) name the folder and what to do: it cannot be had, another process has it, the budget holds no page.
  static Result<std::unique_ptr<PageStore>> open(const PageStoreOptions& options);
  ~PageStore();  // writes what waits

  BlockKey first_key() const { return options_.fingerprint; }

  bool has(const BlockKey& key) const;  // and read() may find it
  // Empty: it is not there, or was damaged.
  std::optional<BlockRecord> read(const BlockKey& key, const BlockPlace& place);
  // Whether write() would take the page: it is new, the one before it is known, and there is room to wait. A new page
  // that is not taken counts as dropped.
  bool wants(const BlockKey& key, const BlockKey& before);
  void write(const BlockKey& key, const BlockPlace& place, const BlockRecord& record);  // wants() said so
  void use(std::span<const BlockKey> path);  // the keys of pages 0, 1, 2, ...
  void flush();                              // returns when nothing waits to be written

  PageStoreCounts counts() const;

 private:
  struct File {
    std::filesystem::path path;
    int64_t n_bytes = 0;
    bool written = false;
    bool used = false;  // since its time was set
    BlockKey key = {};
    bool own = false;  // of this model, and in by_key_
  };
  using Files = std::list<File>;
  struct Waiting {
    BlockKey key;
    std::filesystem::path path;
    std::string bytes;
  };
  struct Found;  // by scan()

  explicit PageStore(PageStoreOptions options);
  Status lock();
  Status scan();
  void scan_folder(const std::filesystem::path& folder, std::vector<Found>& found);
  std::filesystem::path path_of(const BlockKey& key) const;
  int64_t file_bytes() const;
  std::string encode(const BlockPlace& place, const BlockRecord& record) const;
  std::string refusal_of(std::span<const std::byte> file, const BlockPlace& place) const;
  void forget(Files::iterator file);
  void work();
  void write_one(const Waiting& waiting);
  void stay_within_budget();
  void set_times();
  void note(const std::string& line) const;

  PageStoreOptions options_;
  std::filesystem::path own_folder_;
  int lock_ = -1;
  std::vector<std::byte> read_buffer_;

  mutable std::mutex mutex_;  // for all below
  std::condition_variable changed_;
  Files files_;  // least recently used first
  std::map<BlockKey, Files::iterator> by_key_;
  std::deque<Waiting> waiting_;
  int64_t n_waiting_bytes_ = 0;
  bool times_stale_ = false;  // of files that are marked as used
  bool ending_ = false;
  bool writing_ = false;
  bool failing_ = false;  // the last write did, and was told of
  PageStoreCounts counts_;
  std::thread thread_;
};

}  // namespace levin
