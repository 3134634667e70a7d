// Models that come without a tokenizer: token ids in, token ids out.
#pragma once

#include "core/model/text_files.h"

namespace kvscope {

/// Whether a model's folder has a tokenizer file that is read here.
bool hasTokenizer(const std::filesystem::path& folder);

/// Stands in for a tokenizer: id 17 reads "<17>", and encoding a text is refused with a sentence that names the folder
/// and the way out. `vocab`: ids there are.
TextFiles idsOnlyText(const std::filesystem::path& folder, int vocab);

} // namespace kvscope
