#include "ui/widgets/prompt_editor.h"

#include "base/error.h"
#include "core/model/model.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"
#include "ui/widgets/form_helpers.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QFileDialog>
#include <QFileInfo>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QPointer>
#include <QSpinBox>
#include <QThreadPool>
#include <QTimer>
#include <QToolButton>
#include <QVBoxLayout>

namespace kvscope::ui {
namespace {

/// A first answer comes within seconds on two cores, and the needle in the middle is outside of sink and window.
constexpr int kFirstNeedleTokens = 3000;

QFormLayout* makeForm(QWidget* page) {
    auto* form = new QFormLayout(page);
    form->setContentsMargins(0, 0, 0, 0);
    form->setHorizontalSpacing(8);
    form->setVerticalSpacing(4);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    return form;
}

/// The text, or only the beginning and the end of a long one.
QString shortened(const std::string& text) {
    constexpr qsizetype shownCharacters = 1500;
    const QString all = QString::fromStdString(text);
    if (all.size() <= 2 * shownCharacters) return all;
    return all.left(shownCharacters) + QStringLiteral("\n[…]\n") + all.right(shownCharacters);
}

} // namespace

struct PromptEditor::Counter {
    QTimer delay;     // waits until the user stops typing
    int asked = 0;    // number of the newest request; answers to older requests are dropped
    QThreadPool pool; // its destructor waits for the running count
};

PromptEditor::PromptEditor(QWidget* parent)
    : QWidget(parent), kind_(new QComboBox), counter_(std::make_unique<Counter>()) {
    kind_->setObjectName(QStringLiteral("promptKind"));
    kind_->setAccessibleName(tr("Prompt source"));
    kind_->addItem(tr("Needle in a haystack"));
    kind_->addItem(tr("Long document"));
    kind_->addItem(tr("Free text"));
    kind_->addItem(tr("Text file"));
    ignoreWheelUnlessFocused(kind_);
    pages_ = {makeNeedlePage(), makeDocumentPage(), makeTextPage(), makeFilePage(), makeRecordedPage()};
    chatPart_ = makeChatPart();
    counted_ = new MutedLabel;
    counted_->setObjectName(QStringLiteral("promptCount"));
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(6);
    layout->addWidget(kind_);
    for (QWidget* page : pages_) layout->addWidget(page);
    layout->addWidget(chatPart_);
    layout->addWidget(counted_);
    counter_->pool.setMaxThreadCount(1);
    counter_->delay.setSingleShot(true);
    counter_->delay.setInterval(250);
    connect(&counter_->delay, &QTimer::timeout, this, &PromptEditor::count);
    const auto showPage = [this](int index) {
        for (std::size_t page = 0; page < pages_.size(); ++page) pages_[page]->setVisible(int(page) == index);
        showChat();
        edited();
    };
    connect(kind_, &QComboBox::currentIndexChanged, this, showPage);
    showPage(0);
}

PromptEditor::~PromptEditor() = default;

QWidget* PromptEditor::makeNeedlePage() {
    auto* page = new QWidget;
    auto* form = makeForm(page);
    const NeedleOptions defaults;
    needleTokens_ = countField("needleTokens", 64, 1 << 20, kFirstNeedleTokens,
                               tr("Length of the whole prompt, question included."), tr("tokens"));
    needleTokens_->setSingleStep(500);
    needles_ = numberField("needleCount", 1, 64, defaults.needles,
                           tr("Facts hidden in the text; the question asks for one of them."), tr("facts"));
    depth_ = new QDoubleSpinBox;
    depth_->setRange(0, 100);
    depth_->setDecimals(0);
    depth_->setSingleStep(10);
    depth_->setValue(defaults.depth * 100);
    depth_->setSuffix(tr(" %"));
    depth_->setObjectName(QStringLiteral("needleDepth"));
    depth_->setToolTip(tr("Where the fact asked for is hidden: 0 % is the start of the text, 100 % its end."));
    ignoreWheelUnlessFocused(depth_);
    seed_ = numberField("needleSeed", 0, 1 << 30, int(defaults.seed),
                        tr("Chooses text and facts; further sequences of a batch count up from it."));
    needleTokens_->setAccessibleName(tr("Length"));
    auto* length = new QHBoxLayout;
    length->setSpacing(4);
    // Without this the row asks for the width of 1,048,576 tokens beside the button's, and the whole panel grows.
    needleTokens_->setMinimumWidth(needleTokens_->fontMetrics().horizontalAdvance(tr("99,999 tokens")) + 32);
    length->addWidget(needleTokens_, 1);
    auto* longer = new QToolButton;
    longer->setObjectName(QStringLiteral("longNeedle"));
    longer->setText(formatCount(defaults.tokens));
    longer->setToolTip(tr("A long prompt: many more blocks to choose from, and some seconds to read"));
    longer->setAccessibleName(tr("A prompt of %1 tokens").arg(formatCount(defaults.tokens)));
    connect(longer, &QToolButton::clicked, needleTokens_,
            [this, tokens = defaults.tokens] { needleTokens_->setValue(tokens); });
    length->addWidget(longer);
    form->addRow(alignedLabel(tr("Length")), length);
    form->addRow(tr("Needles"), needles_);
    form->addRow(tr("Depth"), depth_);
    form->addRow(tr("Seed"), seed_);
    for (QSpinBox* spin : {needleTokens_, needles_, seed_})
        connect(spin, &QSpinBox::valueChanged, this, &PromptEditor::edited);
    connect(depth_, &QDoubleSpinBox::valueChanged, this, &PromptEditor::edited);
    return page;
}

QWidget* PromptEditor::makeDocumentPage() {
    auto* page = new QWidget;
    auto* form = makeForm(page);
    documentTokens_ =
        countField("documentTokens", 16, 1 << 20, PromptSource().documentTokens,
                   tr("A built-in document is cut to this length; the model continues it."), tr("tokens"));
    documentTokens_->setSingleStep(500);
    documentTokens_->setAccessibleName(tr("Length"));
    form->addRow(alignedLabel(tr("Length")), documentTokens_);
    connect(documentTokens_, &QSpinBox::valueChanged, this, &PromptEditor::edited);
    return page;
}

QWidget* PromptEditor::makeTextPage() {
    text_ = new QPlainTextEdit;
    text_->setObjectName(QStringLiteral("promptText"));
    text_->setPlaceholderText(tr("Write or paste the prompt"));
    text_->setTabChangesFocus(true);
    text_->setFixedHeight(120);
    text_->setAccessibleName(tr("Prompt text"));
    connect(text_, &QPlainTextEdit::textChanged, this, &PromptEditor::edited);
    return text_;
}

QWidget* PromptEditor::makeFilePage() {
    auto* page = new QWidget;
    auto* layout = new QHBoxLayout(page);
    layout->setContentsMargins(0, 0, 0, 0);
    file_ = new QLineEdit;
    file_->setObjectName(QStringLiteral("promptFile"));
    file_->setPlaceholderText(tr("UTF-8 text file"));
    file_->setAccessibleName(tr("Prompt file"));
    auto* browse = new QToolButton;
    browse->setText(tr("Choose…"));
    layout->addWidget(file_, 1);
    layout->addWidget(browse);
    connect(file_, &QLineEdit::textChanged, this, &PromptEditor::edited);
    connect(browse, &QToolButton::clicked, this, [this] {
        const QString path = QFileDialog::getOpenFileName(this, tr("Choose a prompt"), file_->text(),
                                                          tr("Text files (*.txt *.md);;All files (*)"));
        if (!path.isEmpty()) file_->setText(path);
    });
    return page;
}

QWidget* PromptEditor::makeRecordedPage() {
    recordedFrom_ = new MutedLabel;
    recordedFrom_->setObjectName(QStringLiteral("promptRecorded"));
    recordedFrom_->setWordWrap(true);
    recordedFrom_->setToolTip(tr("Token by token what the recorded run has read, whatever text made it."));
    return recordedFrom_;
}

QWidget* PromptEditor::makeChatPart() {
    auto* part = new QWidget;
    auto* layout = new QVBoxLayout(part);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(4);
    chat_ = new QCheckBox(tr("Chat template"));
    chat_->setObjectName(QStringLiteral("promptChat"));
    chat_->setToolTip(tr("Gives the prompt the form this model was trained to answer; base models have no template."));
    system_ = new QLineEdit;
    system_->setObjectName(QStringLiteral("promptSystem"));
    system_->setPlaceholderText(tr("System message (optional)"));
    system_->setAccessibleName(tr("System message"));
    preview_ = new QPlainTextEdit;
    preview_->setObjectName(QStringLiteral("promptPreview"));
    preview_->setReadOnly(true);
    preview_->setTabChangesFocus(true);
    preview_->setFixedHeight(96);
    preview_->setAccessibleName(tr("Prompt as the model reads it"));
    preview_->setToolTip(tr("The prompt as the model reads it."));
    chatProblem_ = new MutedLabel;
    chatProblem_->setObjectName(QStringLiteral("promptChatProblem"));
    chatProblem_->setWordWrap(true);
    for (QWidget* widget : {static_cast<QWidget*>(chat_), static_cast<QWidget*>(chatProblem_),
                            static_cast<QWidget*>(system_), static_cast<QWidget*>(preview_)})
        layout->addWidget(widget);
    connect(chat_, &QCheckBox::toggled, this, [this] {
        showChat();
        edited();
    });
    connect(system_, &QLineEdit::textChanged, this, &PromptEditor::edited);
    showChat();
    return part;
}

void PromptEditor::showChat() {
    const bool isText = recordedSequences() == 0; // recorded tokens have been through a template, or not
    const bool possible = isText && model_ && model_->chatTemplate();
    const QString problem = model_ && isText ? QString::fromStdString(model_->chatProblem()) : QString();
    chat_->setEnabled(possible);
    chat_->setVisible(possible || !problem.isEmpty());
    chatProblem_->setText(problem);
    chatProblem_->setVisible(!problem.isEmpty());
    system_->setVisible(possible && chat_->isChecked());
    preview_->setVisible(possible && chat_->isChecked());
}

bool PromptEditor::isCounted() const {
    const auto kind = PromptSource::Kind(kind_->currentIndex());
    return source().chat || kind == PromptSource::Kind::Text || kind == PromptSource::Kind::File ||
           kind == PromptSource::Kind::Recorded;
}

PromptSource PromptEditor::source() const {
    PromptSource source;
    source.kind = PromptSource::Kind(kind_->currentIndex());
    source.needle.tokens = needleTokens_->value();
    source.needle.needles = needles_->value();
    source.needle.depth = depth_->value() / 100;
    source.needle.seed = std::uint64_t(seed_->value());
    source.documentTokens = documentTokens_->value();
    source.text = text_->toPlainText();
    source.file = file_->text();
    source.sequences = sequences_;
    if (source.kind == PromptSource::Kind::Recorded) {
        source.file = recordedTrace_;
        source.runId = recordedRun_;
        source.sequences = recordedSequences_;
    }
    source.chat = chat_->isEnabled() && chat_->isChecked();
    source.system = system_->text();
    return source;
}

void PromptEditor::setSequences(int sequences) { sequences_ = sequences; }

void PromptEditor::setModel(std::shared_ptr<const Model> model) {
    model_ = std::move(model);
    showChat();
    edited();
}

std::optional<int> PromptEditor::tokens() const {
    if (isCounted()) return textTokens_;
    switch (PromptSource::Kind(kind_->currentIndex())) {
    case PromptSource::Kind::Needle:
        return needleTokens_->value();
    case PromptSource::Kind::LongDocument:
        return documentTokens_->value();
    case PromptSource::Kind::Text:
    case PromptSource::Kind::File:
    case PromptSource::Kind::Recorded:
        return textTokens_;
    }
    return std::nullopt;
}

QString PromptEditor::problem() const {
    switch (PromptSource::Kind(kind_->currentIndex())) {
    case PromptSource::Kind::Needle:
    case PromptSource::Kind::LongDocument:
    case PromptSource::Kind::Recorded:
        return countProblem_;
    case PromptSource::Kind::Text:
        if (text_->toPlainText().trimmed().isEmpty())
            return tr("The prompt is empty: write some text or choose another source.");
        return countProblem_;
    case PromptSource::Kind::File: {
        if (file_->text().isEmpty()) return tr("No prompt file is chosen.");
        const QFileInfo info(file_->text());
        if (!info.exists()) return tr("The prompt file %1 is not there.").arg(file_->text());
        if (!info.isFile() || !info.isReadable()) return tr("The prompt file %1 cannot be read.").arg(file_->text());
        return countProblem_;
    }
    }
    return {};
}

void PromptEditor::edited() {
    textTokens_.reset();
    countProblem_.clear();
    ++counter_->asked;
    counted_->clear();
    counted_->hide();
    preview_->clear();
    if (isCounted()) counter_->delay.start();
    emit changed();
}

void PromptEditor::count() {
    if (!model_ || !isCounted() || !problem().isEmpty()) return;
    const int number = ++counter_->asked;
    PromptSource asked = source();
    asked.sequences = 1;
    counter_->pool.start([this, number, asked, model = model_] {
        int tokens = 0;
        QString sentence, preview;
        try {
            if (asked.kind == PromptSource::Kind::Recorded) {
                for (const auto& ids : asked.ids(*model)) tokens = std::max(tokens, int(ids.size()));
            } else {
                const std::string prompt = asked.build(model->tokenizer()).front();
                if (asked.chat) preview = shortened(asked.finalText(*model, prompt));
                tokens = int(asked.encode(*model, prompt).size());
            }
        } catch (const Error& error) {
            sentence = QString::fromStdString(oneLine(error));
        } catch (const std::exception& error) {
            sentence = QString::fromUtf8(error.what());
        }
        // `this` is valid here: Counter's destructor waits for this worker. If the editor dies before the call below
        // runs, Qt drops the call.
        QMetaObject::invokeMethod(
            this,
            [this, number, tokens, sentence, preview] {
                if (number != counter_->asked) return;
                countProblem_ = sentence;
                preview_->setPlainText(preview);
                if (sentence.isEmpty()) {
                    textTokens_ = tokens;
                    counted_->setText(tr("%1 tokens").arg(formatCount(tokens)));
                    counted_->show();
                }
                emit changed();
            },
            Qt::QueuedConnection);
    });
}

void PromptEditor::chooseFile(const QString& path) {
    file_->setText(path);
    kind_->setCurrentIndex(int(PromptSource::Kind::File));
}

void PromptEditor::chooseRecorded(const QString& trace, int runId, int sequences) {
    recordedTrace_ = trace;
    recordedRun_ = runId;
    recordedSequences_ = std::max(1, sequences);
    recordedFrom_->setText(
        recordedSequences_ == 1
            ? tr("The prompt of run %1 of %2").arg(runId).arg(QFileInfo(trace).fileName())
            : tr("The %1 prompts of run %2 of %3").arg(recordedSequences_).arg(runId).arg(QFileInfo(trace).fileName()));
    if (kind_->count() <= int(PromptSource::Kind::Recorded)) kind_->addItem(tr("Recorded prompt"));
    kind_->setCurrentIndex(int(PromptSource::Kind::Recorded));
    showChat();
    edited(); // also where the prompt was of this kind already
}

int PromptEditor::recordedSequences() const {
    return kind_->currentIndex() == int(PromptSource::Kind::Recorded) ? recordedSequences_ : 0;
}

QVariantMap PromptEditor::values() const {
    return {{"kind", kind_->currentIndex()},
            {"needleTokens", needleTokens_->value()},
            {"needles", needles_->value()},
            {"depth", depth_->value()},
            {"seed", seed_->value()},
            {"documentTokens", documentTokens_->value()},
            {"text", text_->toPlainText()},
            {"file", file_->text()},
            {"chat", chat_->isChecked()},
            {"system", system_->text()},
            {"trace", recordedTrace_},
            {"traceRun", recordedRun_},
            {"traceSequences", recordedSequences_}};
}

void PromptEditor::setValues(const QVariantMap& values) {
    const auto restore = [&](const char* key, auto&& set) {
        if (const auto found = values.constFind(QLatin1String(key)); found != values.constEnd()) set(*found);
    };
    restore("needleTokens", [&](const QVariant& v) { needleTokens_->setValue(v.toInt()); });
    restore("needles", [&](const QVariant& v) { needles_->setValue(v.toInt()); });
    restore("depth", [&](const QVariant& v) { depth_->setValue(v.toDouble()); });
    restore("seed", [&](const QVariant& v) { seed_->setValue(v.toInt()); });
    restore("documentTokens", [&](const QVariant& v) { documentTokens_->setValue(v.toInt()); });
    restore("text", [&](const QVariant& v) { text_->setPlainText(v.toString()); });
    restore("file", [&](const QVariant& v) { file_->setText(v.toString()); });
    restore("chat", [&](const QVariant& v) { chat_->setChecked(v.toBool()); });
    restore("system", [&](const QVariant& v) { system_->setText(v.toString()); });
    const QString trace = values.value(QStringLiteral("trace")).toString();
    restore("kind", [&](const QVariant& v) {
        if (v.toInt() < int(PromptSource::Kind::Recorded))
            kind_->setCurrentIndex(v.toInt());
        else if (QFileInfo::exists(trace)) // otherwise the trace is gone, and the choice stays
            chooseRecorded(trace, values.value(QStringLiteral("traceRun")).toInt(),
                           values.value(QStringLiteral("traceSequences")).toInt());
    });
}

} // namespace kvscope::ui
