#include "ui/widgets/session_form.h"

#include "base/error.h"
#include "core/model/model.h"
#include "core/session/decode_session.h"
#include "tests/support/places.h"
#include "ui/frame/small_widgets.h"

#include <QApplication>
#include <QCheckBox>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QSignalSpy>
#include <QSpinBox>
#include <QTemporaryDir>
#include <QTest>
#include <QTimer>
#include <QToolButton>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

std::shared_ptr<const Model> embeddedModel() {
    static const std::shared_ptr<const Model> model = Model::load(kDefaultModel);
    return model;
}

class SessionFormTest : public testing::Test {
protected:
    SessionFormTest() {
        form.setModel(QString::fromLatin1(kDefaultModel), embeddedModel());
        form.show();
    }
    void choose(const std::string& method) {
        auto* combo = form.findChild<QComboBox*>("method");
        combo->setCurrentIndex(combo->findData(QString::fromStdString(method)));
    }
    template <class Widget> Widget* find(const char* name) { return form.findChild<Widget*>(QLatin1String(name)); }
    QPushButton* runButton() { return find<QPushButton>("runButton"); }
    QString reason() { return find<QLabel>("runReason")->text(); }

    SessionForm form;
};

std::string valueOf(const QWidget* editor) {
    if (const auto* spin = qobject_cast<const QSpinBox*>(editor)) return std::to_string(spin->value());
    if (const auto* combo = qobject_cast<const QComboBox*>(editor)) return combo->currentText().toStdString();
    if (const auto* check = qobject_cast<const QCheckBox*>(editor)) return check->isChecked() ? "true" : "false";
    return {};
}

TEST_F(SessionFormTest, ChoosingAGpuSaysWhichOneOrWhyThereIsNone) {
    auto* backend = find<QComboBox>("backend");
    EXPECT_EQ(form.request().options.backend, Backend::Cpu);
    backend->setCurrentIndex(backend->findData(int(Backend::Cuda)));
    EXPECT_EQ(form.request().options.backend, Backend::Cuda);
    EXPECT_FALSE(find<QComboBox>("link")->isEnabled()) << "a GPU's link is measured";
    auto* kernels = find<QCheckBox>("recordGpu");
    auto* level = find<QComboBox>("recordLevel");
    EXPECT_FALSE(kernels->isHidden());
    EXPECT_TRUE(form.request().recordGpu);
    auto* calls = find<QCheckBox>("recordCalls");
    EXPECT_FALSE(calls->isHidden());
    EXPECT_TRUE(form.request().recordCalls);
    calls->click();
    EXPECT_FALSE(form.request().recordCalls);
    auto* counters = find<QComboBox>("pcieCounters");
    EXPECT_FALSE(counters->isHidden());
    EXPECT_EQ(form.request().pcieCounting, PcieCounting::Auto);
    counters->setCurrentIndex(counters->findData(int(PcieCounting::Nvml)));
    EXPECT_EQ(form.request().pcieCounting, PcieCounting::Nvml);
    kernels->click();
    EXPECT_FALSE(form.request().recordGpu);
    EXPECT_FALSE(calls->isEnabled()) << "CUPTI, which they come from, is off";
    EXPECT_FALSE(counters->isEnabled()) << "they belong to what is recorded of the GPU";
    level->setCurrentIndex(int(RecordLevel::Counters));
    EXPECT_TRUE(kernels->isHidden()) << "kernels are recorded at level full only";
    EXPECT_TRUE(calls->isHidden());
    EXPECT_TRUE(counters->isHidden());
    level->setCurrentIndex(int(RecordLevel::Full));
    auto* facts = find<QLabel>("backendFacts");
    EXPECT_TRUE(QTest::qWaitFor([&] { return !facts->text().contains(QStringLiteral("Looking")); }, 20000));
    std::string refusal;
    try {
        describeGpu();
    } catch (const Error& error) {
        refusal = oneLine(error);
    }
    EXPECT_EQ(form.problem().toStdString(), refusal);
    backend->setCurrentIndex(backend->findData(int(Backend::Cpu)));
    EXPECT_EQ(form.problem(), QString());
    EXPECT_TRUE(find<QComboBox>("link")->isEnabled());
    EXPECT_TRUE(kernels->isHidden());
}

TEST_F(SessionFormTest, AModelThatCannotBeLoadedLeavesNothingOfTheOneBefore) {
    QSignalSpy requested(&form, &SessionForm::modelRequested);
    form.chooseModel(QStringLiteral("/nowhere/at/all"));
    ASSERT_EQ(requested.size(), 1);
    EXPECT_EQ(form.modelName(), QStringLiteral("/nowhere/at/all"));
    EXPECT_FALSE(find<QToolButton>("modelDetails")->isEnabled()) << "they would be of another model";
    form.setModelProblem(QStringLiteral("it is not there"));
    EXPECT_EQ(find<QLabel>("modelFacts")->text(), QString()) << "nothing is being loaded any more";
    EXPECT_FALSE(runButton()->isEnabled());
    form.setModel(QString::fromLatin1(kDefaultModel), embeddedModel());
    EXPECT_TRUE(find<QToolButton>("modelDetails")->isEnabled());
    EXPECT_EQ(form.modelProblem(), QString());
}

TEST_F(SessionFormTest, AFolderOrAFileCanBeAskedForAndGivenUp) {
    auto* models = find<QComboBox>("model");
    form.chooseModel(QStringLiteral("/nowhere/at/all"));
    form.setModelProblem(QStringLiteral("it is not there"));
    QSignalSpy requested(&form, &SessionForm::modelRequested);
    QStringList asked;
    for (const int fromTheEnd : {2, 1}) {
        QTimer::singleShot(0, &form, [&] {
            QWidget* dialog = QApplication::activeModalWidget();
            ASSERT_NE(dialog, nullptr);
            asked << dialog->windowTitle();
            dialog->close();
        });
        models->setCurrentIndex(models->count() - fromTheEnd);
        EXPECT_EQ(form.modelName(), QStringLiteral("/nowhere/at/all")) << "what was chosen before still is";
    }
    EXPECT_EQ(requested.size(), 0);
    ASSERT_EQ(asked.size(), 2);
    EXPECT_TRUE(asked[0].contains(QStringLiteral("folder")));
    EXPECT_TRUE(asked[1].contains(QStringLiteral("GGUF")));
    EXPECT_FALSE(runButton()->isEnabled()) << "it still cannot be loaded";
}

TEST_F(SessionFormTest, TabGoesFromTopToBottomWhateverTheMethod) {
    form.resize(330, 900);
    find<Section>("advanced")->setExpanded(true);
    for (const char* name : {"nosa", "quest", "shadowkv"}) {
        choose(name);
        QCoreApplication::processEvents();
        int stops = 0, last = -1;
        const QWidget* stop = find<QComboBox>("model");
        const auto placeOf = [&](const QWidget* widget) { return widget->mapTo(&form, widget->rect().center()).y(); };
        for (; stop != runButton(); stop = stop->nextInFocusChain()) {
            ASSERT_LT(++stops, 1000) << "it never comes to Run";
            if (!stop->isVisible() || !(stop->focusPolicy() & Qt::TabFocus) || stop->focusProxy()) continue;
            if (!form.isAncestorOf(stop)) break;
            EXPECT_GE(placeOf(stop), last - 12) << name << ": " << stop->objectName().toStdString();
            last = std::max(last, placeOf(stop));
        }
        EXPECT_EQ(stop, runButton()) << name;
        EXPECT_GT(last, placeOf(find<QComboBox>("method"))) << name;
    }
}

TEST_F(SessionFormTest, EveryMethodGetsAnEditorPerParameterShowingTheCheckpointsDefault) {
    ASSERT_FALSE(methods().empty());
    for (const MethodEntry& method : methods()) {
        if (!method.decodesTokens || method.hasIndexer != nullptr) continue; // the embedded model cannot use it
        choose(method.name);
        const ParameterValues defaults = resolveDefaults(method, embeddedModel()->config());
        for (const Parameter& parameter : method.parameters) {
            auto* editor = form.findChild<QWidget*>(QStringLiteral("param_") + QString::fromStdString(parameter.key));
            ASSERT_NE(editor, nullptr) << method.name << " " << parameter.key;
            EXPECT_FALSE(editor->toolTip().isEmpty()) << parameter.key;
            EXPECT_FALSE(editor->toolTip().contains("e+")) << editor->toolTip().toStdString();
            if (const auto* number = qobject_cast<const QDoubleSpinBox*>(editor))
                EXPECT_NEAR(number->value(), defaults.number(parameter.key), 1e-4);
            else
                EXPECT_EQ(valueOf(editor), defaults.text(parameter.key)) << method.name << " " << parameter.key;
        }
        EXPECT_TRUE(form.request().options.settings.empty()) << "defaults are not settings: " << method.name;
        EXPECT_EQ(form.problem(), QString()) << method.name;
        EXPECT_TRUE(runButton()->isEnabled());
    }
}

TEST_F(SessionFormTest, ABudgetThatCannotHoldTheForcedBlocksDisablesRunAndSaysWhy) {
    choose("nosa");
    auto* total = find<QSpinBox>("param_total_blocks");
    const int before = total->value();
    QSignalSpy changed(&form, &SessionForm::problemChanged);
    total->setValue(2);
    EXPECT_FALSE(runButton()->isEnabled());
    EXPECT_TRUE(reason().contains("Total blocks 2 is smaller than")) << reason().toStdString();
    EXPECT_TRUE(find<InlineMessage>("parameterMessage")->text().contains("raise Total blocks, or lower Sink blocks"));
    EXPECT_FALSE(reason().contains('_')) << "the form shows no keys: " << reason().toStdString();
    EXPECT_EQ(changed.size(), 1);
    QSignalSpy asked(&form, &SessionForm::runRequested);
    form.run();
    EXPECT_EQ(asked.size(), 0);
    total->setValue(before);
    EXPECT_TRUE(runButton()->isEnabled());
    EXPECT_EQ(form.problem(), QString());
}

TEST_F(SessionFormTest, AContextThatIsTooLongDisablesRunAndNamesTheNumbers) {
    find<QSpinBox>("needleTokens")->setValue(embeddedModel()->config().maxPositions);
    find<QSpinBox>("maxNewTokens")->setValue(2);
    EXPECT_FALSE(runButton()->isEnabled());
    EXPECT_TRUE(reason().contains("context")) << reason().toStdString();
    find<QSpinBox>("maxNewTokens")->setValue(1); // the last token is not fed back
    EXPECT_TRUE(runButton()->isEnabled());
}

TEST_F(SessionFormTest, TooFewDeviceSlotsDisableRun) {
    choose("nosa");
    find<QSpinBox>("deviceSlots")->setValue(3);
    EXPECT_FALSE(runButton()->isEnabled());
    EXPECT_TRUE(reason().contains("slots")) << reason().toStdString();
    find<QCheckBox>("offload")->setChecked(false); // then nothing is offloaded and slots do not matter
    EXPECT_TRUE(runButton()->isEnabled());
}

TEST_F(SessionFormTest, TheCachePolicyIsTheMethodsOwnUnlessOneIsChosen) {
    choose("infllm");
    EXPECT_EQ(form.request().options.cachePolicy, "") << "least recent use, because its pool has slots to spare";
    auto* policy = find<QComboBox>("cachePolicy");
    policy->setCurrentIndex(policy->findData(QStringLiteral("lru-s")));
    EXPECT_TRUE(runButton()->isEnabled()) << reason().toStdString();
    EXPECT_EQ(form.request().options.cachePolicy, "lru-s");
    choose("nosa"); // nosa does not rate blocks, which lru-s needs
    EXPECT_FALSE(runButton()->isEnabled());
    EXPECT_TRUE(reason().contains("lru-s") && reason().contains("infllm")) << reason().toStdString();
    find<QCheckBox>("offload")->setChecked(false);
    EXPECT_TRUE(runButton()->isEnabled());
    choose("h2o"); // h2o decides itself what stays on the device
    find<QCheckBox>("offload")->setChecked(true);
    EXPECT_TRUE(runButton()->isEnabled()) << reason().toStdString();
}

TEST_F(SessionFormTest, FreeTextIsCountedWithTheModelsTokenizerAndMustNotBeEmpty) {
    find<QComboBox>("promptKind")->setCurrentIndex(int(PromptSource::Kind::Text));
    EXPECT_FALSE(runButton()->isEnabled());
    EXPECT_TRUE(reason().contains("empty"));
    const std::string text = "The quick brown fox jumps over the lazy dog.";
    find<QPlainTextEdit>("promptText")->setPlainText(QString::fromStdString(text));
    ASSERT_TRUE(QTest::qWaitFor([&] { return runButton()->isEnabled(); }, 10000));
    const auto expected = embeddedModel()->tokenizer().encode(text).size();
    EXPECT_EQ(find<QLabel>("promptCount")->text().toStdString(), std::to_string(expected) + " tokens");
}

TEST_F(SessionFormTest, ABaseModelOffersNoChatTemplate) {
    EXPECT_TRUE(find<QCheckBox>("promptChat")->isHidden());
    find<QCheckBox>("promptChat")->setChecked(true); // remembered from another model
    EXPECT_FALSE(form.request().source->chat);
}

TEST_F(SessionFormTest, AChatModelsPromptIsPreviewedAndCountedWithItsTemplate) {
    namespace fs = std::filesystem;
    std::string name = (fs::temp_directory_path() / "kvscope-chat-XXXXXX").string();
    const fs::path folder = mkdtemp(name.data());
    fs::copy(test::source("tests/golden/hf_llama"), folder, fs::copy_options::recursive);
    std::ofstream(folder / "chat_template.jinja")
        << "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[answer]";
    form.setModel(QString::fromStdString(folder.string()), Model::load(folder.string()));
    find<QComboBox>("promptKind")->setCurrentIndex(int(PromptSource::Kind::Text));
    find<QPlainTextEdit>("promptText")->setPlainText("hi");
    find<QCheckBox>("promptChat")->setChecked(true);
    find<QLineEdit>("promptSystem")->setText("brief");
    auto* preview = find<QPlainTextEdit>("promptPreview");
    ASSERT_TRUE(QTest::qWaitFor([&] { return !preview->toPlainText().isEmpty(); }, 10000));
    EXPECT_EQ(preview->toPlainText(), "[system]brief[user]hi[answer]");
    const auto request = form.request();
    EXPECT_TRUE(request.source->chat);
    const auto model = Model::load(folder.string());
    const auto ids = request.source->encode(*model, "hi");
    EXPECT_EQ(ids, model->tokenizer().encode("[system]brief[user]hi[answer]", false));
    EXPECT_EQ(find<QLabel>("promptCount")->text().toStdString(), std::to_string(ids.size()) + " tokens");
    fs::remove_all(folder);
}

TEST_F(SessionFormTest, AMissingPromptFileIsNamed) {
    find<QComboBox>("promptKind")->setCurrentIndex(int(PromptSource::Kind::File));
    form.findChild<QLineEdit*>("promptFile")->setText("/nowhere/prompt.txt");
    EXPECT_FALSE(runButton()->isEnabled());
    EXPECT_TRUE(reason().contains("/nowhere/prompt.txt"));
}

TEST_F(SessionFormTest, APipeIsNoPromptFile) {
    const QTemporaryDir folder;
    PromptSource source;
    source.kind = PromptSource::Kind::File;
    source.file = folder.filePath("pipe");
    ASSERT_EQ(mkfifo(source.file.toLocal8Bit().constData(), 0600), 0);
    try {
        (void)source.build(Model::load(kDefaultModel)->tokenizer());
        FAIL() << "nothing was thrown";
    } catch (const Error& error) {
        EXPECT_NE(oneLine(error).find("pipe: it is not a text file"), std::string::npos) << oneLine(error);
    }
}

TEST_F(SessionFormTest, ARunningSessionDisablesRunWithAReason) {
    form.setRunning(true);
    EXPECT_FALSE(runButton()->isEnabled());
    EXPECT_TRUE(reason().contains("running"));
    form.setRunning(false);
    EXPECT_TRUE(runButton()->isEnabled());
}

TEST_F(SessionFormTest, ARequestHoldsWhatTheFormShows) {
    choose("nosa");
    find<QSpinBox>("needleTokens")->setValue(600);
    find<QSpinBox>("needleCount")->setValue(2);
    find<QDoubleSpinBox>("needleDepth")->setValue(25);
    find<QSpinBox>("sequences")->setValue(3);
    find<QSpinBox>("maxNewTokens")->setValue(7);
    find<QSpinBox>("param_select_blocks")->setValue(3);
    find<QDoubleSpinBox>("temperature")->setValue(0.7);
    find<QSpinBox>("samplingSeed")->setValue(9);
    find<QSpinBox>("deviceSlots")->setValue(24);
    find<QComboBox>("recordLevel")->setCurrentIndex(int(RecordLevel::Selections));
    auto* link = find<QComboBox>("link");
    link->setCurrentIndex(link->count() - 1);
    find<QDoubleSpinBox>("linkGbps")->setValue(12.5);
    const SessionRequest request = form.request();
    ASSERT_TRUE(request.source.has_value());
    EXPECT_EQ(request.source->kind, PromptSource::Kind::Needle);
    EXPECT_EQ(request.source->needle.tokens, 600);
    EXPECT_EQ(request.source->needle.needles, 2);
    EXPECT_DOUBLE_EQ(request.source->needle.depth, 0.25);
    EXPECT_EQ(request.source->sequences, 3);
    EXPECT_EQ(request.options.method, "nosa");
    const std::vector<std::pair<std::string, std::string>> settings{{"select_blocks", "3"}};
    EXPECT_EQ(request.options.settings, settings);
    EXPECT_EQ(request.options.maxNewTokens, 7);
    EXPECT_DOUBLE_EQ(request.options.sampling.temperature, 0.7);
    EXPECT_EQ(request.options.sampling.seed, 9U);
    EXPECT_EQ(request.options.deviceKvBlocks, 24);
    EXPECT_EQ(request.level, RecordLevel::Selections);
    EXPECT_DOUBLE_EQ(request.options.link.gigabytesPerSecond, 12.5);
}

TEST_F(SessionFormTest, SettingsOfAMethodSurviveALookAtAnother) {
    choose("nosa");
    find<QSpinBox>("param_select_blocks")->setValue(3);
    choose("quest");
    EXPECT_TRUE(form.request().options.settings.empty());
    choose("nosa");
    EXPECT_EQ(find<QSpinBox>("param_select_blocks")->value(), 3);
}

TEST_F(SessionFormTest, ValuesComeBackInAnotherForm) {
    choose("nosa");
    find<QSpinBox>("param_select_blocks")->setValue(3);
    find<QSpinBox>("needleTokens")->setValue(777);
    find<QSpinBox>("sequences")->setValue(2);
    find<QComboBox>("recordLevel")->setCurrentIndex(0);
    choose("quest");
    SessionForm other;
    other.setValues(form.values());
    other.setModel(QString::fromLatin1(kDefaultModel), embeddedModel());
    EXPECT_EQ(other.values(), form.values());
    EXPECT_EQ(other.request().options.method, "quest");
    auto* combo = other.findChild<QComboBox*>("method");
    combo->setCurrentIndex(combo->findData(QStringLiteral("nosa")));
    EXPECT_EQ(other.findChild<QSpinBox*>("param_select_blocks")->value(), 3);
}

TEST_F(SessionFormTest, ASavedValueThatIsNoLongerAllowedFallsBackToTheDefault) {
    choose("nosa");
    const int usual = find<QSpinBox>("param_block_size")->value();
    SessionForm other;
    other.setValues({{"method", "nosa"},
                     {"settings", QVariantMap{{"nosa", QVariantMap{{"block_size", "banana"}, {"gone", "1"}}}}}});
    other.setModel(QString::fromLatin1(kDefaultModel), embeddedModel());
    EXPECT_EQ(other.findChild<QSpinBox*>("param_block_size")->value(), usual);
    EXPECT_EQ(other.problem(), QString());
}

TEST_F(SessionFormTest, SaysHowManyTokensAreAttendedWhateverTheBudgetIsCountedIn) {
    find<QSpinBox>("needleTokens")->setValue(9000);
    find<QSpinBox>("maxNewTokens")->setValue(100);
    const auto said = [&](const char* method) {
        choose(method);
        QString text = find<QLabel>("budget")->text();
        EXPECT_FALSE(text.contains(QStringLiteral(" %"))) << "a line may break there: " << text.toStdString();
        return text.replace(QChar::Nbsp, QLatin1Char(' ')).toStdString();
    };
    const auto contains = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
    EXPECT_TRUE(contains(said("full"), "all 9,100")) << said("full");
    EXPECT_TRUE(contains(said("nosa"), "most 1,024 of")) << said("nosa");       // 16 blocks
    EXPECT_TRUE(contains(said("h2o"), "most 1,801 of")) << said("h2o");         // two tenths of the prompt, the newest
    EXPECT_TRUE(contains(said("snapkv"), "most 1,124 of")) << said("snapkv");   // and what is generated
    EXPECT_TRUE(contains(said("asynctls"), "most 512 of")) << said("asynctls"); // tokens, inside 17 blocks
    EXPECT_TRUE(contains(said("dma-token"), "most 704 of")) << said("dma-token");
    // 88 chosen chunks of 8, 17 outliers, 4 local ones, nothing that fills none, and what is generated
    EXPECT_TRUE(contains(said("shadowkv"), "most 972 of")) << said("shadowkv");
    EXPECT_TRUE(contains(said("infllmv2"), "most 1,024 of")) << said("infllmv2");
    find<QSpinBox>("param_dense_len")->setValue(9100); // the last step has 9,099 cached
    EXPECT_TRUE(contains(find<QLabel>("budget")->text().toStdString(), "all 9,100"));
}

TEST_F(SessionFormTest, ProposesTheForecastWhereTheModelHasOneAndBlocksTravel) {
    auto* note = find<QLabel>("forecastNote");
    choose("nosa");
    EXPECT_FALSE(note->isHidden());
    EXPECT_TRUE(note->text().contains("The text may differ"));
    auto* ahead = find<QComboBox>("param_ahead");
    ahead->setCurrentText("forecast");
    EXPECT_TRUE(note->isHidden());
    EXPECT_EQ(form.request().options.settings, (decltype(form.request().options.settings){{"ahead", "forecast"}}));
    ahead->setCurrentText("none");
    EXPECT_FALSE(note->isHidden());
    choose("quest");
    EXPECT_TRUE(note->isHidden()) << "it has no such setting";
    choose("infllmv2");
    EXPECT_FALSE(note->isHidden());
    form.setModel("plain", Model::load(test::source("tests/golden/hf_llama")));
    choose("infllmv2");
    EXPECT_TRUE(note->isHidden()) << "the model has no Forecast heads";
    find<QComboBox>("param_ahead")->setCurrentText("forecast");
    EXPECT_TRUE(form.problem().contains("needs Forecast heads")) << form.problem().toStdString();
}

TEST(KvEstimate, CountsBlocksOfBothTiers) {
    const auto model = embeddedModel();
    const ModelConfig& config = model->config();
    const MethodEntry& nosa = findMethod("nosa");
    const ParameterValues values = resolveDefaults(nosa, config);
    const SelectionSpec spec = nosa.make(values, config);
    MethodUse use{values, spec, config};
    const KvEstimate estimate = estimateKv(*model, nosa, use, {8900, 100}, 2);
    const std::int64_t perBlock =
        estimate.deviceBytes / (std::int64_t(2) * config.layers * config.kvHeads * estimate.blockSlots);
    EXPECT_EQ(estimate.blockSlots, spec.budgetBlocks());
    EXPECT_EQ(estimate.hostBytes,
              perBlock * 2 * config.layers * config.kvHeads * ((9000 + spec.blockSize - 1) / spec.blockSize));
    EXPECT_GE(perBlock, std::int64_t(2) * spec.blockSize * config.headDim * 4);
    use.offload = false;
    const KvEstimate resident = estimateKv(*model, nosa, use, {8900, 100}, 2);
    EXPECT_EQ(resident.blockSlots, 0);
    EXPECT_EQ(resident.deviceBytes, 0) << "on the CPU, which reads the blocks in the host store";
    EXPECT_EQ(resident.sharedBytes, resident.hostBytes);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
