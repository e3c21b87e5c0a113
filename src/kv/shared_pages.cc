#include "kv/shared_pages.h"

#include <algorithm>

#include "base/check.h"

namespace levin {

SharedPages::~SharedPages() {
  for (const Page& page : by_use_) pool_->release(page.page);
}

void SharedPages::use(std::span<const BlockKey> path) {
  for (size_t i = path.size(); i-- > 0;) by_use_.splice(by_use_.end(), by_use_, by_key_.at(path[i]));
}

SharedPages::Match SharedPages::find(std::span<const BlockKey> path) {
  Match match;
  for (const BlockKey& key : path) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) break;
    const Page& page = *found->second;
    pool_->retain(page.page);
    match.pages.push_back(page.page);
    match.resume = page.resume;
  }
  use(path.first(match.pages.size()));
  return match;
}

void SharedPages::adopt(std::span<const BlockKey> path, std::span<int32_t> pages, size_t from,
                        std::span<const ResumeState> resume) {
  LEVIN_CHECK(path.size() == pages.size() && from + resume.size() == pages.size(),
              "shared pages: {} keys for {} pages, states for {} of them from page {}", path.size(), pages.size(),
              resume.size(), from);
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto known = by_key_.find(path[i]);
    if (known == by_key_.end()) {
      LEVIN_CHECK(i >= from, "shared pages: page {} of {} is not among them, though said to be", i, from);
      pool_->retain(pages[i]);
      by_key_.emplace(path[i],
                      by_use_.insert(by_use_.end(), {.key = path[i], .page = pages[i], .resume = resume[i - from]}));
      continue;
    }
    const int32_t shared = known->second->page;
    if (shared == pages[i]) continue;
    pool_->retain(shared);
    pool_->release(pages[i]);
    pages[i] = shared;
  }
  use(path);
}

int32_t SharedPages::evict(int32_t n_pages) {
  int32_t n_given = 0;
  for (Uses::iterator at = by_use_.begin(); at != by_use_.end() && n_given < n_pages;) {
    if (pool_->n_references(at->page) > 1) {
      ++at;
      continue;
    }
    pool_->release(at->page);
    by_key_.erase(at->key);
    at = by_use_.erase(at);
    ++n_given;
  }
  return n_given;
}

int32_t SharedPages::n_evictable() const {
  return static_cast<int32_t>(std::count_if(by_use_.begin(), by_use_.end(),
                                            [&](const Page& page) { return pool_->n_references(page.page) == 1; }));
}

}  // namespace levin
