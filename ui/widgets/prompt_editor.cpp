#include "ui/widgets/prompt_editor.h"

#include "core/model/model.h"
#include "kernels/base/error.h"
#include "ui/models/format.h"
#include "ui/widgets/small_widgets.h"

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
#include <QVBoxLayout>

namespace kvscope::ui {
namespace {

QSpinBox* makeSpin(int low, int high, int value, const QString& suffix, const char* name, const QString& tip) {
    auto* spin = new QSpinBox;
    spin->setRange(low, high);
    spin->setValue(value);
    spin->setSuffix(suffix);
    spin->setObjectName(QLatin1String(name));
    spin->setToolTip(tip);
    spin->setWhatsThis(tip);
    ignoreWheelUnlessFocused(spin);
    return spin;
}

QFormLayout* makeForm(QWidget* page) {
    auto* form = new QFormLayout(page);
    form->setContentsMargins(0, 0, 0, 0);
    form->setHorizontalSpacing(8);
    form->setVerticalSpacing(4);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    return form;
}

} // namespace

struct PromptEditor::Counter {
    QTimer delay;     // a person is still typing
    int asked = 0;    // late answers are dropped
    QThreadPool pool; // joined by its destructor
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
    pages_ = {makeNeedlePage(), makeDocumentPage(), makeTextPage(), makeFilePage()};
    counted_ = new MutedLabel;
    counted_->setObjectName(QStringLiteral("promptCount"));
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(6);
    layout->addWidget(kind_);
    for (QWidget* page : pages_) layout->addWidget(page);
    layout->addWidget(counted_);
    counter_->pool.setMaxThreadCount(1);
    counter_->delay.setSingleShot(true);
    counter_->delay.setInterval(250);
    connect(&counter_->delay, &QTimer::timeout, this, &PromptEditor::count);
    const auto showPage = [this](int index) {
        for (std::size_t page = 0; page < pages_.size(); ++page) pages_[page]->setVisible(int(page) == index);
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
    needleTokens_ = makeSpin(64, 1 << 20, defaults.tokens, tr(" tokens"), "needleTokens",
                             tr("Length of the whole prompt, question included."));
    needleTokens_->setSingleStep(500);
    needles_ = makeSpin(1, 64, defaults.needles, tr(" facts"), "needleCount",
                        tr("Facts hidden in the text; the question asks for one of them."));
    depth_ = new QDoubleSpinBox;
    depth_->setRange(0, 100);
    depth_->setDecimals(0);
    depth_->setSingleStep(10);
    depth_->setValue(defaults.depth * 100);
    depth_->setSuffix(tr(" %"));
    depth_->setObjectName(QStringLiteral("needleDepth"));
    depth_->setToolTip(tr("Where the fact asked for is hidden: 0 % is the start of the text, 100 % its end."));
    ignoreWheelUnlessFocused(depth_);
    seed_ = makeSpin(0, 1 << 30, int(defaults.seed), {}, "needleSeed",
                     tr("Chooses text and facts; further sequences of a batch count up from it."));
    form->addRow(alignedLabel(tr("Length")), needleTokens_);
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
    documentTokens_ = makeSpin(16, 1 << 20, PromptSource().documentTokens, tr(" tokens"), "documentTokens",
                               tr("A built-in document is cut to this length; the model continues it."));
    documentTokens_->setSingleStep(500);
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
    return source;
}

void PromptEditor::setSequences(int sequences) { sequences_ = sequences; }

void PromptEditor::setModel(std::shared_ptr<const Model> model) {
    model_ = std::move(model);
    edited();
}

std::optional<int> PromptEditor::tokens() const {
    switch (PromptSource::Kind(kind_->currentIndex())) {
    case PromptSource::Kind::Needle:
        return needleTokens_->value();
    case PromptSource::Kind::LongDocument:
        return documentTokens_->value();
    case PromptSource::Kind::Text:
    case PromptSource::Kind::File:
        return textTokens_;
    }
    return std::nullopt;
}

QString PromptEditor::problem() const {
    switch (PromptSource::Kind(kind_->currentIndex())) {
    case PromptSource::Kind::Needle:
    case PromptSource::Kind::LongDocument:
        return {};
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
    const auto kind = PromptSource::Kind(kind_->currentIndex());
    textTokens_.reset();
    countProblem_.clear();
    ++counter_->asked;
    counted_->clear();
    counted_->hide();
    if (kind == PromptSource::Kind::Text || kind == PromptSource::Kind::File) counter_->delay.start();
    emit changed();
}

void PromptEditor::count() {
    if (!model_ || !problem().isEmpty()) return;
    const int number = ++counter_->asked;
    PromptSource asked = source();
    asked.sequences = 1;
    counter_->pool.start([this, number, asked, model = model_] {
        int tokens = 0;
        QString sentence;
        try {
            tokens = int(model->tokenizer().encode(asked.build(model->tokenizer()).front()).size());
        } catch (const Error& error) {
            sentence = QString::fromStdString(oneLine(error));
        } catch (const std::exception& error) {
            sentence = QString::fromUtf8(error.what());
        }
        // The pool is joined before this object is gone, and a queued call dies with it.
        QMetaObject::invokeMethod(
            this,
            [this, number, tokens, sentence] {
                if (number != counter_->asked) return;
                countProblem_ = sentence;
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

QVariantMap PromptEditor::values() const {
    return {{"kind", kind_->currentIndex()}, {"needleTokens", needleTokens_->value()},
            {"needles", needles_->value()},  {"depth", depth_->value()},
            {"seed", seed_->value()},        {"documentTokens", documentTokens_->value()},
            {"text", text_->toPlainText()},  {"file", file_->text()}};
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
    restore("kind", [&](const QVariant& v) { kind_->setCurrentIndex(v.toInt()); });
}

} // namespace kvscope::ui
