// Recall on the demonstration models, in two sizes: test_recall_full (label full) reads twelve documents, test_recall the
// few of them that ask for most numbers.
#pragma once

#include <gtest/gtest.h>

#include "engine/loaded_model.h"

namespace levin::test {

constexpr int kMaxDocuments = 12;

struct RecallCase {
  const char* model;
  int n_documents;
};

class RecallTest : public ::testing::TestWithParam<RecallCase> {};

// Of demo-v32 alone; the parameter is the number of documents.
class RecallOfV32Test : public ::testing::TestWithParam<int> {};

}  // namespace levin::test
