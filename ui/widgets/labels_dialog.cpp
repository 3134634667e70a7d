#include "ui/widgets/labels_dialog.h"

#include "ui/frame/small_widgets.h"

#include <QDialogButtonBox>
#include <QFormLayout>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QVBoxLayout>

#include <algorithm>

namespace kvscope::ui {

namespace {

/// The tags of a text, separated by commas, in alphabetical order.
std::vector<std::string> tagsIn(const QString& text) {
    std::vector<std::string> tags;
    for (const QString& part : text.split(QLatin1Char(','), Qt::SkipEmptyParts))
        if (const QString tag = part.simplified(); !tag.isEmpty()) tags.push_back(tag.toStdString());
    std::ranges::sort(tags);
    const auto twice = std::ranges::unique(tags);
    tags.erase(twice.begin(), twice.end());
    return tags;
}

std::vector<std::string> tagsOfAll(const std::vector<LabelledRun>& runs) {
    std::vector<std::string> tags = runs.front().labels.tags;
    for (const LabelledRun& run : runs)
        std::erase_if(tags, [&](const std::string& tag) {
            return std::find(run.labels.tags.begin(), run.labels.tags.end(), tag) == run.labels.tags.end();
        });
    return tags;
}

QString noteOfAll(const std::vector<LabelledRun>& runs) {
    const std::string& note = runs.front().labels.note;
    const bool same =
        std::all_of(runs.begin(), runs.end(), [&](const LabelledRun& run) { return run.labels.note == note; });
    return same ? QString::fromStdString(note) : QString();
}

QString joined(const std::vector<std::string>& tags) {
    QStringList texts;
    for (const std::string& tag : tags) texts << QString::fromStdString(tag);
    return texts.join(QStringLiteral(", "));
}

} // namespace

LabelsDialog::LabelsDialog(const std::vector<LabelledRun>& runs, Field first, QWidget* parent)
    : QDialog(parent), one_(runs.size() == 1), name_(one_ ? runs.front().name : QString()), note_(noteOfAll(runs)),
      shared_(tagsOfAll(runs)), nameField_(new QLineEdit), tagsField_(new QLineEdit), noteField_(new QPlainTextEdit) {
    setObjectName(QStringLiteral("labelsDialog"));
    setWindowTitle(one_ ? tr("Name, Tags and Note") : tr("Tags and Note of %1 Runs").arg(runs.size()));
    setAttribute(Qt::WA_DeleteOnClose);
    nameField_->setObjectName(QStringLiteral("labelName"));
    nameField_->setAccessibleName(tr("Name"));
    nameField_->setText(name_);
    nameField_->setPlaceholderText(tr("the recorded name"));
    nameField_->setToolTip(tr("Name of the run; empty: the recorded name"));
    tagsField_->setObjectName(QStringLiteral("labelTags"));
    tagsField_->setAccessibleName(tr("Tags"));
    tagsField_->setText(joined(shared_));
    tagsField_->setPlaceholderText(tr("separated by commas"));
    tagsField_->setToolTip(one_ ? tr("Tags, separated by commas")
                                : tr("Tags that all of these runs have; others of their tags stay"));
    noteField_->setObjectName(QStringLiteral("labelNote"));
    noteField_->setAccessibleName(tr("Note"));
    noteField_->setPlainText(note_);
    const bool various = std::any_of(runs.begin(), runs.end(), [&](const LabelledRun& run) {
        return QString::fromStdString(run.labels.note) != note_;
    });
    noteField_->setPlaceholderText(various ? tr("The runs have different notes. A note written here replaces them")
                                           : tr("What there is to say of it"));
    noteField_->setTabChangesFocus(true);
    noteField_->setMinimumHeight(90);
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(12);
    form->setVerticalSpacing(8);
    if (one_) {
        form->addRow(alignedLabel(tr("Name")), nameField_);
    } else {
        nameField_->setParent(this);
        nameField_->hide();
    }
    form->addRow(alignedLabel(tr("Tags")), tagsField_);
    form->addRow(alignedLabel(tr("Note")), noteField_);
    auto* buttons = new QDialogButtonBox(QDialogButtonBox::Save | QDialogButtonBox::Cancel);
    buttons->button(QDialogButtonBox::Save)->setObjectName(QStringLiteral("labelsSave"));
    connect(buttons, &QDialogButtonBox::accepted, this, &QDialog::accept);
    connect(buttons, &QDialogButtonBox::rejected, this, &QDialog::reject);
    auto* kept = new MutedLabel(tr("Kept in the trace, beside what was recorded."));
    kept->setWordWrap(true);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(16, 14, 16, 14);
    layout->setSpacing(10);
    layout->addLayout(form, 1);
    layout->addWidget(kept);
    layout->addWidget(buttons);
    resize(460, one_ ? 300 : 260);
    if (first == Field::Name && one_) {
        nameField_->setFocus();
        nameField_->selectAll();
    } else if (first == Field::Note) {
        noteField_->setFocus();
    } else {
        tagsField_->setFocus();
        tagsField_->end(false);
    }
}

LabelEdit LabelsDialog::edit() const {
    LabelEdit edit;
    if (const QString name = nameField_->text().simplified(); one_ && name != name_.simplified())
        edit.name = name.toStdString();
    if (const QString note = noteField_->toPlainText().trimmed(); note != note_.trimmed())
        edit.note = note.toStdString();
    const std::vector<std::string> wanted = tagsIn(tagsField_->text());
    const auto without = [](const std::vector<std::string>& from, const std::vector<std::string>& what) {
        std::vector<std::string> rest;
        for (const std::string& tag : from)
            if (std::find(what.begin(), what.end(), tag) == what.end()) rest.push_back(tag);
        return rest;
    };
    edit.added = without(wanted, shared_);
    edit.removed = without(shared_, wanted);
    return edit;
}

} // namespace kvscope::ui
