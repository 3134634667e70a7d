// Models that come without a tokenizer: token ids in, token ids out.
#pragma once

#include "core/model/text_files.h"

namespace kvscope {

/// Whether a model's folder has a tokenizer file that this program reads.
bool hasTokenizer(const std::filesystem::path& folder);

/// Takes the place of a tokenizer: id 17 becomes the text "<17>", and encoding a text is refused with a sentence that
/// names the folder and says what to do. `vocab`: how many ids there are.
TextFiles idsOnlyText(const std::filesystem::path& folder, int vocab);

} // namespace kvscope
