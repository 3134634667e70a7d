// The makers that the registry names: one for each component of tokenizer.json.
#pragma once

#include "core/model/tokenizer/components.h"

namespace kvscope::tokenizing {

using NormalizerSteps = std::vector<std::unique_ptr<Normalizer>>;
using PreTokenizerSteps = std::vector<std::unique_ptr<PreTokenizer>>;
using DecodeSteps = std::vector<std::unique_ptr<DecodeStep>>;

void makeNormalizerSequence(const Spec& spec, NormalizerSteps& steps);
void makeNormalForm(const Spec& spec, NormalizerSteps& steps);
void makeLowercase(const Spec& spec, NormalizerSteps& steps);
void makeStripAccents(const Spec& spec, NormalizerSteps& steps);
void makeStripSpaces(const Spec& spec, NormalizerSteps& steps);
void makePrepend(const Spec& spec, NormalizerSteps& steps);
void makeReplaceNormalizer(const Spec& spec, NormalizerSteps& steps);
void makePrecompiled(const Spec& spec, NormalizerSteps& steps);

void makePreTokenizerSequence(const Spec& spec, PreTokenizerSteps& steps);
void makeByteLevelPreTokenizer(const Spec& spec, PreTokenizerSteps& steps);
void makeSplit(const Spec& spec, PreTokenizerSteps& steps);
void makeMetaspacePreTokenizer(const Spec& spec, PreTokenizerSteps& steps);
void makeDigits(const Spec& spec, PreTokenizerSteps& steps);
void makePunctuation(const Spec& spec, PreTokenizerSteps& steps);
void makeWhitespace(const Spec& spec, PreTokenizerSteps& steps);
void makeWhitespaceSplit(const Spec& spec, PreTokenizerSteps& steps);
void makeDelimiterSplit(const Spec& spec, PreTokenizerSteps& steps);

void makeDecoderSequence(const Spec& spec, DecodeSteps& steps);
void makeByteLevelDecodeStep(const Spec& spec, DecodeSteps& steps);
void makeMetaspaceDecoder(const Spec& spec, DecodeSteps& steps);
void makeByteFallbackStep(const Spec& spec, DecodeSteps& steps);
void makeFuse(const Spec& spec, DecodeSteps& steps);
void makeStripDecoder(const Spec& spec, DecodeSteps& steps);
void makeReplaceStep(const Spec& spec, DecodeSteps& steps);

} // namespace kvscope::tokenizing
