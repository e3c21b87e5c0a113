// The prefix cache on disk, which outlives the process, so that a restarted server can resume prompts. A page of the
// store is the record of a block of tokens (kv/cache.h) with the state of its last token.
//
//   DIR/lock                      locked while a store is open: only one process at a time can use a folder
//   DIR/<fingerprint>/<page>      one file per page (docs/kv_format.md); one folder for each model, numerics, kernel
//                                 set and layout, so that their rows are never mixed
//
// The key of a page, a SHA-256 digest of the preceding key and the page's tokens, identifies all tokens up to its end.
// The file repeats tokens and fingerprint and ends with a checksum. A file that does not agree in every byte is
// removed, with one line to `note`, and treated as absent. A file appears under its name completely or not at all, even
// if the process or the machine fails.
//
// Budget    max_bytes for all of DIR. The least recently used pages are removed first, and a page before those that
//           precede it: a use counts for a whole path, from its end. File modification times record the times of use
// Threads   one thread calls; the store's own thread writes and removes files. Pages to be written wait in memory, up
//           to max_queued_bytes; further pages and their successors are dropped
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
  std::filesystem::path folder;  // created if it does not exist
  int64_t max_bytes = 0;
  Digest fingerprint = {};  // of everything but tokens that rows depend on
  int64_t n_tokens = 0;     // of a page
  int64_t n_row_bytes = 0;  // of a page's record
  int64_t n_state = 0;      // floats stored with it (kv/shared_pages.h, ResumeState)
  int64_t max_queued_bytes = int64_t{256} << 20;
  std::function<void(const std::string& line)> note;  // from any thread; may be empty
};

// The position of a page: its tokens and what precedes them.
struct BlockPlace {
  BlockKey before = {};             // key of the preceding page; first_key() for the first page
  std::span<const int32_t> tokens;  // n_tokens
};
// The contents of a page.
struct BlockRecord {
  std::vector<float> state;     // n_state
  std::vector<std::byte> rows;  // n_row_bytes
};

struct PageStoreCounts {
  int64_t n_pages = 0;  // of this model
  int64_t n_bytes = 0;  // of all files
  int64_t n_read = 0;   // pages since the start, as the counts below
  int64_t n_written = 0;
  int64_t n_removed = 0;  // to stay within the budget
  int64_t n_refused = 0;  // damaged
  int64_t n_dropped = 0;  // not stored, because the disk was too slow or a write failed
};

class PageStore {
 public:
  // Errors (kUsage) name the folder and what to do: it cannot be created or read, another process uses it, or the
  // budget is smaller than a page.
  static Result<std::unique_ptr<PageStore>> open(const PageStoreOptions& options);
  ~PageStore();  // writes the waiting pages first

  BlockKey first_key() const { return options_.fingerprint; }

  bool has(const BlockKey& key) const;  // if so, read() may still find the file damaged
  // Empty if there is no such page, or if its file is damaged.
  std::optional<BlockRecord> read(const BlockKey& key, const BlockPlace& place);
  // Whether write() accepts the page: it is new, the preceding page is stored, and there is room in the queue. A new
  // page that is not accepted counts as dropped.
  bool wants(const BlockKey& key, const BlockKey& before);
  void write(const BlockKey& key, const BlockPlace& place, const BlockRecord& record);  // only if wants()
  void use(std::span<const BlockKey> path);  // marks pages 0, 1, 2, ... as the most recently used
  void flush();                              // waits until no page waits to be written

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
  template <class Work>
  void guarded(const Work& work);
  void enqueue(const BlockKey& key, const BlockPlace& place, const BlockRecord& record);
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
