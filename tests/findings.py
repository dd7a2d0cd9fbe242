"""Findings of users, and the test of each that failed before."""

FINDINGS = (
    (
        "The head table says 'on this text' for scores from random texts, and 0.00 where a role does not apply",
        "tests/browser/test_page_attention.py::test_head_table_says_where_its_scores_come_from",
    ),
    (
        "A utilization of 113 % of peak is shown",
        "tests/train/test_live.py::test_no_utilization_above_the_peak_is_shown",
    ),
    (
        "FLOPs count attention over the whole context, whatever the mask and the sentences",
        "tests/train/test_live.py::test_flops_of_short_sentences_and_of_windows",
    ),
    (
        "Curves have no smoothing, axis choice, zoom or axis titles",
        "tests/browser/test_page_runs.py::test_horizontal_axis_smoothing_and_zoom",
    ),
    (
        "A curve that is dashed in the plot is solid in the legend",
        "tests/browser/test_page_runs.py::test_dashed_in_the_legend_where_dashed_in_the_plot",
    ),
    (
        "Losses of different tokenizers are compared per token",
        "tests/browser/test_page_runs.py::test_losses_of_different_tokenizers_are_compared_in_bits_per_byte",
    ),
    (
        "More than eight runs cannot be compared; there is no search, no tag, no note and no link to the report",
        "tests/browser/test_page_runs.py::test_many_runs_search_tags_notes_and_report",
    ),
    ("There is no view of two runs side by side", "tests/browser/test_page_runs.py::test_two_runs_side_by_side"),
    (
        "An unknown run in the address shows the newest run",
        "tests/browser/test_page_runs.py::test_unknown_runs_are_named",
    ),
    (
        "Attention, Sampling and Probes open empty",
        "tests/browser/test_page_attention.py::test_opens_with_a_held_out_passage_of_the_newest_run_with_a_checkpoint",
    ),
    ("Only Attention lets one choose the checkpoint", "tests/browser/test_page_attention.py::test_checkpoint_choice"),
    ("There is no line view between tokens", "tests/browser/test_page_attention.py::test_lines_between_tokens"),
    ("The rollout has no token labels", "tests/browser/test_page_probes.py::test_rollout"),
    (
        "The page shows neither the feed-forward networks nor the residual stream",
        "tests/browser/test_page_probes.py::test_whole_model",
    ),
    ("Heads of small models are mostly called mixed", "tests/look/test_roles.py::test_roles_are_told_from_scores"),
    (
        "A text that cannot be encoded prints a 400 in the browser's console",
        "tests/browser/test_page_sampling.py::test_a_text_that_the_tokenizer_cannot_encode",
    ),
    ("Escape does not leave a text box", "tests/browser/test_page_accessibility.py::test_number_keys_switch_views"),
    (
        "Disabled buttons have too little contrast in dark mode",
        "tests/browser/test_page_accessibility.py::test_contrast_in_both_color_schemes",
    ),
    (
        "Content is clipped at phone width",
        "tests/browser/test_page_accessibility.py::test_nothing_is_clipped_on_a_phone",
    ),
    (
        "Nothing shows that a table scrolls",
        "tests/browser/test_page_accessibility.py::test_scrolled_content_fades_out_at_the_edge",
    ),
    (
        "Presets cannot be chosen by name on the command line",
        "tests/models/test_presets.py::test_presets_are_chosen_by_name",
    ),
    ("There is no command that describes a published model", "tests/models/test_presets.py::test_describe_command"),
    (
        "A model that the task cannot train ends in an internal error, or trains on tokens that it sees",
        "tests/models/test_presets.py::test_a_model_that_the_task_cannot_train_is_refused",
    ),
    (
        "Python users find no load, generate and train",
        "tests/test_python_docs.py::test_every_block_runs",
    ),
    (
        "There is no Weights & Biases",
        "tests/report/test_trackers.py::test_weights_and_biases_offline",
    ),
    (
        "There is no MLflow",
        "tests/report/test_trackers.py::test_mlflow_gets_the_config_the_curves_and_the_end",
    ),
    (
        "The notes' defaults are no recipe",
        "tests/laws/test_initial_loss.py::test_a_recipe_starts_at_a_uniform_guess",
    ),
)
