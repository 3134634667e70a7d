// Lays out the widgets of the session form; session_form.cpp has what they do.
#include "core/model/model.h"
#include "ui/frame/small_widgets.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/parameter_panel.h"
#include "ui/widgets/prompt_editor.h"
#include "ui/widgets/session_advanced.h"
#include "ui/widgets/session_backend.h"
#include "ui/widgets/session_footer.h"
#include "ui/widgets/session_form.h"

#include <QComboBox>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QScrollArea>
#include <QScrollBar>
#include <QSpinBox>
#include <QToolButton>
#include <QVBoxLayout>

namespace kvscope::ui {

SessionForm::SessionForm(QWidget* parent) : QWidget(parent) {
    loading_ = true;
    auto* scroll = new QScrollArea;
    scroll->setObjectName(QStringLiteral("sessionScroll"));
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    auto* page = new QWidget;
    auto* sections = new QVBoxLayout(page);
    sections->setContentsMargins(8, 4, 8, 8);
    sections->setSpacing(4);
    makeModelSection(sections);
    makePromptSection(sections);
    makeMethodSection(sections);
    advanced_ = new SessionAdvanced(sections, this);
    connect(advanced_, &SessionAdvanced::changed, this, &SessionForm::revalidate);
    sections->addStretch();
    scroll->setWidget(page);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(0);
    layout->addWidget(scroll, 1);
    footer_ = new SessionFooter;
    layout->addWidget(footer_);
    connect(footer_, &SessionFooter::run, this, &SessionForm::run);
    connect(footer_, &SessionFooter::addToQueue, this, &SessionForm::addToQueue);
    connect(footer_, &SessionFooter::sweep, this, &SessionForm::sweep);
    setMinimumSize(240, 190);                             // the footer below the sections, which scroll, is never cut
    for (QComboBox* combo : findChildren<QComboBox*>()) { // long names are elided and do not widen the panel
        combo->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
        combo->setMinimumContentsLength(8);
    }
    setMinimumWidth(std::max(page->minimumSizeHint().width() + scroll->verticalScrollBar()->sizeHint().width() + 2,
                             layout->minimumSize().width())); // the buttons below stand in one row
    setFocusProxy(model_);
    loading_ = false;
    showMethod();
}

SessionForm::~SessionForm() = default;

void SessionForm::makeModelSection(QVBoxLayout* layout) {
    auto* section = new Section(tr("Model"));
    layout->addWidget(section);
    model_ = named(new QComboBox, "model",
                   tr("The embedded model, a Hugging Face folder with config.json, tokenizer.json and safetensors "
                      "files, or a GGUF file. A folder or GGUF file can also be dropped on the window."));
    model_->setAccessibleName(tr("Model"));
    for (const std::string& name : embeddedModels())
        model_->addItem(tr("%1 (embedded)").arg(QString::fromStdString(name)), QString::fromStdString(name));
    addModelDialogs(model_);
    model_->setCurrentIndex(std::max(0, model_->findData(QString::fromLatin1(kDefaultModel))));
    chosen_.name = modelName();
    modelDetails_ = named(new QToolButton, "modelDetails",
                          tr("What was understood of the model: attention, positions, methods, memory of each tier."));
    modelDetails_->setText(tr("Details"));
    modelDetails_->setEnabled(false);
    auto* row = new QHBoxLayout;
    row->addWidget(model_, 1);
    row->addWidget(modelDetails_);
    section->body()->addLayout(row);
    modelFacts_ = addMuted(section->body(), "modelFacts");
    modelFacts_->setText(tr("Loading…"));
    modelMessage_ = new InlineMessage;
    modelMessage_->setObjectName(QStringLiteral("modelMessage"));
    section->body()->addWidget(modelMessage_);
    backend_ = new SessionBackend(section->body(), this);
    connect(backend_, &SessionBackend::chosen, this, [this](Backend backend) {
        advanced_->setBackend(backend);
        revalidate();
    });
    connect(backend_, &SessionBackend::found, this, &SessionForm::revalidate);
    connect(model_, &QComboBox::currentIndexChanged, this, &SessionForm::modelPicked);
    connect(modelDetails_, &QToolButton::clicked, this, &SessionForm::showModelPage);
}

/// The last two entries of the list open a dialog: the last one to choose a GGUF file, the one before it to choose a
/// folder.
void SessionForm::modelPicked(int index) {
    QString name = model_->itemData(index).toString();
    if (name.isEmpty()) name = ui::askForModel(this, model_, index);
    if (name.isEmpty()) // the user cancelled: the model picked before stays
        listModel(chosen_.name);
    else
        chooseModel(name);
}

void SessionForm::listModel(const QString& nameOrPath) { ui::listModel(model_, chosen_.name = nameOrPath); }

void SessionForm::chooseModel(const QString& nameOrPath) {
    listModel(nameOrPath);
    chosen_.problem.clear();
    modelMessage_->clear();
    if (nameOrPath != chosen_.loadedName) {
        modelFacts_->setText(tr("Loading…"));
        modelDetails_->setEnabled(false); // the details are those of the model before
    }
    revalidate();
    emit modelRequested(nameOrPath);
}

QString SessionForm::modelName() const { return model_->currentData().toString(); }

void SessionForm::makePromptSection(QVBoxLayout* layout) {
    auto* section = new Section(tr("Prompt"));
    layout->addWidget(section);
    prompt_ = new PromptEditor;
    section->body()->addWidget(prompt_);
    QFormLayout* form = addForm(section->body());
    sequences_ =
        numberField("sequences", 1, kMostSequences, 1,
                    tr("Sequences decoded together. Needle prompts differ by their seed, other prompts repeat."));
    maxNewTokens_ =
        countField("maxNewTokens", 1, 100000, 128, tr("Decoding ends after so many new tokens."), tr("tokens"));
    sequences_->setAccessibleName(tr("Sequences"));
    form->addRow(alignedLabel(tr("Sequences")), sequences_);
    form->addRow(tr("Generate"), maxNewTokens_);
    connect(prompt_, &PromptEditor::changed, this, &SessionForm::revalidate);
    connect(sequences_, &QSpinBox::valueChanged, this, &SessionForm::revalidate);
    connect(maxNewTokens_, &QSpinBox::valueChanged, this, &SessionForm::revalidate);
}

void SessionForm::makeMethodSection(QVBoxLayout* layout) {
    auto* section = new Section(tr("Method"));
    layout->addWidget(section);
    method_ = named(new QComboBox, "method", tr("How each KV head chooses the blocks it attends to."));
    method_->setAccessibleName(tr("Method"));
    for (const MethodEntry& entry : methods()) {
        method_->addItem(QString::fromStdString(entry.title), QString::fromStdString(entry.name));
        method_->setItemData(method_->count() - 1,
                             QStringLiteral("<p>%1</p><p>%2</p>")
                                 .arg(QString::fromStdString(entry.summary).toHtmlEscaped(),
                                      QString::fromStdString(entry.source).toHtmlEscaped()),
                             Qt::ToolTipRole);
    }
    method_->setCurrentIndex(std::max(0, method_->findData(QString::fromStdString(SessionOptions().method))));
    section->body()->addWidget(method_);
    methodSummary_ = addMuted(section->body(), "methodSummary");
    parameters_ = new ParameterPanel;
    parameters_->setObjectName(QStringLiteral("parameters"));
    section->body()->addWidget(parameters_);
    parameterMessage_ = new InlineMessage(nullptr, false);
    parameterMessage_->setObjectName(QStringLiteral("parameterMessage"));
    section->body()->addWidget(parameterMessage_);
    budget_ = addMuted(section->body(), "budget");
    forecastNote_ = addMuted(section->body(), "forecastNote");
    connect(method_, &QComboBox::currentIndexChanged, this, &SessionForm::showMethod);
    connect(parameters_, &ParameterPanel::changed, this, &SessionForm::revalidate);
}

} // namespace kvscope::ui
