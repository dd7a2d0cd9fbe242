"""Findings of users, and the test of each that failed before."""

FINDINGS = (
    (
        "Sinusoidal positions of a GPT drown its embeddings, which lack the factor sqrt(d)",
        "tests/nn/test_positions.py::test_sinusoidal_positions_do_not_drown_the_tokens",
    ),
    (
        "Gradient accumulation trains on other data than the larger batch",
        "tests/train/test_micro_batches.py::test_micro_batches_are_parts_of_one_batch",
    ),
    (
        "translate-transformer starts at a loss of 12.4, where a uniform guess gives 8.3",
        "tests/laws/test_initial_loss.py::test_a_recipe_starts_at_a_uniform_guess",
    ),
    (
        "Bahdanau's first decoder state is not the paper's, and the docs do not say so",
        "tests/models/test_seq2seq.py::test_bahdanaus_model_is_the_papers",
    ),
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
        "tests/models/test_size.py::test_flops_of_short_sentences_and_of_windows",
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
    ("attend takes no boolean tensor", "tests/laws/test_mask_forms.py::test_a_boolean_tensor_is_that_of_sdpa"),
    ("attend takes no float tensor", "tests/laws/test_mask_forms.py::test_a_float_tensor_is_that_of_sdpa"),
    (
        "attend takes no mask expression as text and no function as FlexAttention's users write it",
        "tests/laws/test_mask_forms.py::test_functions_and_text",
    ),
    (
        "A mask of another type fails somewhere inside of attend",
        "tests/laws/test_mask_forms.py::test_anything_else_is_one_sentence",
    ),
    (
        "A causal mask aligned to the lower right is not documented or tested",
        "tests/laws/test_mask_forms.py::test_causal_aligned_to_the_lower_right",
    ),
    (
        "Masks do not draw themselves in a notebook",
        "tests/attention/test_mask_picture.py::test_masks_draw_themselves_in_a_notebook",
    ),
    (
        "GPTConfig(position='learned') fails in Python",
        "tests/laws/test_configs.py::test_every_choice_takes_the_name_of_a_kind",
    ),
    (
        "LSH attention is quadratic by default",
        "tests/attention/test_lsh_options.py::test_the_default_form_is_the_faster_one",
    ),
    (
        "LSH attention cannot share queries and keys as Reformer does",
        "tests/attention/test_lsh_options.py::test_shared_queries_and_keys_as_in_reformer",
    ),
    (
        "A folder with train, valid and test files is silently joined",
        "tests/data/test_own_parts.py::test_a_folder_with_parts_is_recognized",
    ),
    (
        "A text cannot have validation and test files of its own",
        "tests/data/test_own_parts.py::test_given_paths_are_the_same_as_a_folder",
    ),
    (
        "Resume does not notice a changed validation file",
        "tests/train/test_resume.py::test_a_changed_validation_file_is_refused",
    ),
    (
        "A model cannot be evaluated on any file, and perplexity is not given",
        "tests/train/test_evaluate_command.py::test_any_file_is_measured_with_the_tokenizer_of_the_run",
    ),
    ("Compressed texts cannot be read", "tests/data/test_text_formats.py::test_compressed_texts"),
    (".jsonl texts cannot be read by field", "tests/data/test_text_formats.py::test_lines_of_json"),
    (".parquet texts cannot be read", "tests/data/test_text_formats.py::test_tables"),
    ("Epochs are no budget", "tests/train/test_budget.py::test_epochs_become_steps"),
    (
        "An attribution in a third column is taken for groups and halves the held-out pairs",
        "tests/data/test_pair_files.py::test_a_third_column_that_differs_on_every_line_is_no_group",
    ),
    (
        "Training on Windows fails at names that only Unix has",
        "tests/test_windows.py::test_train_generate_look_and_the_page_need_no_unix_names",
    ),
    (
        "A character outside the encoding of a Windows pipe ends a command with an internal error",
        "tests/test_windows.py::test_a_character_that_the_terminal_cannot_show_is_no_error",
    ),
    (
        "There is no shell completion",
        "tests/test_completion.py::test_a_shell_completes_commands_options_keys_values_and_runs",
    ),
    (
        "`regard serve` prints nothing for seconds, and gives no hint over SSH",
        "tests/serve/test_start.py::test_a_line_comes_at_once_then_the_address_and_the_tunnel",
    ),
    (
        "`regard serve` has another port at each start",
        "tests/serve/test_start.py::test_the_default_port_is_fixed_and_the_next_free_one_follows",
    ),
    (
        "There is no `pip install regard[all]`",
        "tests/test_docs.py::test_all_extras_of_commands_are_in_all",
    ),
    (
        "The README does not say for whom it is, why not another library, and what the notes are",
        "tests/test_docs.py::test_the_opening_says_what_for_whom_and_why",
    ),
    (
        "There is no documentation site with an API reference",
        "tests/test_docs.py::test_every_public_name_is_in_the_reference",
    ),
    ("Train for longer starts over", "tests/report/test_words.py::test_longer_training_continues_the_run"),
    (
        "The doctor advises qk_norm true where it is true already",
        "tests/doctor/test_curve_checks.py::test_a_suggested_change_differs_from_the_setting",
    ),
    (
        "The doctor advises two learning rates for one run",
        "tests/doctor/test_curve_checks.py::test_all_checks_suggest_one_learning_rate",
    ),
    (
        "The doctor and the report advise different learning rates",
        "tests/report/test_words.py::test_a_report_names_one_learning_rate",
    ),
    (
        "The doctor says nothing where a run does not start near a uniform guess",
        "tests/doctor/test_curve_checks.py::test_a_first_loss_is_compared_with_a_uniform_guess",
    ),
    (
        "The doctor's smaller batch with accumulation trains on other windows",
        "tests/doctor/test_resource_checks.py::test_the_batch_that_fits_trains_on_the_same_tokens",
    ),
    ("A long evaluation shows no progress", "tests/train/test_live.py::test_a_long_evaluation_shows_its_progress"),
    (
        "Report writing shows no progress; a log file has carriage returns",
        "tests/train/test_live.py::test_a_log_file_has_plain_lines",
    ),
    ("A file of regard look has 5.6 MB", "tests/serve/test_look_command.py::test_a_short_text_makes_a_small_file"),
    (
        "The report has no hover, zoom and token labels",
        "tests/browser/test_report.py::test_curves_and_maps_answer_the_pointer",
    ),
    (
        "Layers have other names in the report than on the page",
        "tests/report/test_page.py::test_a_finished_run_shows_everything_and_its_text_as_text",
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
        "tests/test_doc_blocks.py::test_every_block_runs",
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
        "A budget of seconds trains for one step if an evaluation takes longer than the budget",
        "tests/train/test_budget.py::test_a_long_evaluation_does_not_leave_an_untrained_model",
    ),
    (
        "A slow machine that prepares for longer than the budget trains for one step without a word",
        "tests/train/test_budget.py::test_a_run_that_will_be_late_trains_and_says_why",
    ),
    (
        "The report of a short run explains a faint line that is not drawn",
        "tests/report/test_words.py::test_the_faint_line_is_explained_where_it_is_drawn",
    ),
    (
        "regard look of a translation model does not name --pair",
        "tests/serve/test_look_command.py::test_a_translation_model_needs_both_texts",
    ),
    (
        "The lists of recipes, studies and masks are not aligned, and show the notation of docstrings",
        "tests/test_cli.py::test_lists_have_two_columns",
    ),
    (
        "A note for developers is in the help of --model.feedforward",
        "tests/test_cli.py::test_the_help_of_a_choice_is_one_sentence_for_users",
    ),
    (
        "--data-path is answered with --data.validation_path, --learning-rate with nothing",
        "tests/test_cli.py::test_options_of_other_libraries_are_understood",
    ),
    (
        "regard data breaks words at 80 columns",
        "tests/data/test_data_command.py::test_list",
    ),
    (
        "The commands of `regard completion --help` fail in a new home",
        "tests/test_completion.py::test_the_commands_of_the_help_work_in_a_new_home",
    ),
    (
        "regard evaluate --file of a translation model names no command",
        "tests/train/test_evaluate_command.py::test_a_file_for_a_translation_model_is_a_sentence_with_the_command",
    ),
    (
        "The docs do not say which arguments the methods of an observer take",
        "tests/test_python_docs.py::test_the_methods_of_an_observer_are_documented_with_their_arguments",
    ),
    (
        "A list of prompts, or q and k of different widths, end in an error of Python or PyTorch",
        "tests/test_python_docs.py::test_generate_explains_its_errors",
    ),
    (
        "The README does not name the extras zst, parquet, wandb and mlflow",
        "tests/test_docs.py::test_the_readme_names_every_extra",
    ),
    (
        "The notes' defaults are no recipe",
        "tests/laws/test_initial_loss.py::test_a_recipe_starts_at_a_uniform_guess",
    ),
    (
        "In zsh, the first TAB after `regard` completes nothing",
        "tests/test_completion.py::test_a_shell_completes_commands_options_keys_values_and_runs",
    ),
    (
        "`regard describe` counts attention over the full context, and the embeddings, as FLOPs",
        "tests/models/test_size.py::test_describe_counts_as_training_does",
    ),
    (
        "FLOPs of mixed layers count every mask alike, and repeated blocks once",
        "tests/models/test_size.py::test_each_layer_counts_with_its_own_mask",
    ),
    (
        "A benchmark with too few rounds says so after it has measured",
        "tests/test_bench.py::test_too_few_rounds_are_refused_at_once",
    ),
    (
        "`regard resume` has no --wandb and --mlflow",
        "tests/report/test_trackers.py::test_only_the_chosen_trackers_observe",
    ),
    (
        "An error of W&B or MLflow ends the training",
        "tests/report/test_trackers.py::test_a_tracker_that_fails_is_warned_about_once_and_training_goes_on",
    ),
    (
        "Code blocks of the README and the docs may be wrong: not all of them run in a test",
        "tests/test_doc_blocks.py::test_every_block_runs",
    ),
    (
        "Commands that the text of the docs mentions may not exist",
        "tests/test_doc_blocks.py::test_commands_in_prose_exist",
    ),
    (
        "`regard look` shows the weights of a plain softmax for a subclass of Softmax that defines other weights",
        "tests/look/test_subclasses.py::test_the_weights_of_a_subclass_are_shown",
    ),
    (
        "A weight above 1 overflows the byte of a map",
        "tests/look/test_subclasses.py::test_a_map_shows_weights_above_one_as_one_and_below_zero_as_zero",
    ),
    (
        "A mechanism with a forward pass of its own shows weights that it inherits",
        "tests/look/test_subclasses.py::test_a_subclass_with_a_forward_of_its_own_has_no_weights_but_its_own",
    ),
    (
        "A sentence of `regard approximate` has the word parasweeps",
        "tests/approximate/test_measure_replacements.py::test_linformer_is_measured_without_the_mask_and_never_put_into_the_model",
    ),
    (
        "CONTRIBUTING names tests that do not cover a new mechanism",
        "tests/laws/test_models.py::test_every_mechanism_of_the_package_is_in_a_model",
    ),
    (
        "docs/design.md is long and names functions that are gone",
        "tests/test_design.py::test_a_name_in_a_picture_exists",
    ),
    (
        "Heads of encoder-decoders have other numbers in the report than on the page",
        "tests/report/test_words.py::test_heads_of_a_translation_have_the_names_of_the_page",
    ),
    (
        "A file of `regard look` gives weights to keys that top-k attention leaves out",
        "tests/browser/test_page_cells.py::test_cells_of_a_file_are_those_of_the_server",
    ),
    (
        "A file of `regard look` has no exact rows for mechanisms whose weights have no steps",
        "tests/serve/test_look_command.py::test_rows_of_mechanisms_without_steps_are_embedded",
    ),
    (
        "The page measures an encoder on the next token, which it does not predict",
        "tests/look/test_session.py::test_an_encoder_predicts_the_tokens_that_it_reads",
    ),
    (
        "The progress of `regard translate` does not say how long the rest will take",
        "tests/test_waiting.py::test_progress_says_how_long_the_rest_will_take",
    ),
    (
        "`regard data verify` prints only at its end",
        "tests/data/test_data_command.py::test_each_text_is_reported_when_it_is_verified",
    ),
    (
        "Attention opens with the newest run even if its model has no attention",
        "tests/browser/test_page_attention.py::test_a_view_opens_with_a_run_that_it_supports",
    ),
    (
        "The config.toml of a run cannot be trained again",
        "tests/test_cli.py::test_the_config_of_a_run_is_an_experiment",
    ),
    (
        "The README has no animated demo",
        "tests/test_demo.py::test_the_picture_is_of_the_readme_small_and_needs_nothing_else",
    ),
    (
        "The doctor takes negative attention weights for a collapse (entropy -inf%)",
        "tests/look/test_subclasses.py::test_negative_weights_are_no_collapse",
    ),
)
