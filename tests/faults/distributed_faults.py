"""Mistakes that only several processes can make."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

JOINT, RANKS, STEP = "mechanisms/joint.py", "ranks.py", "training/step.py"
TEST = "tests/distributed/test_processes.py::"

FAULTS = [
    Fault(
        "noise of every process on all of the sum",
        "training/update.py",
        {
            "            release_jointly(\n"
            "                self._sums, noise, bits, scales=scales, parameters=parameters, ranks=self._ranks\n"
            "            )\n": ""
            "            ones = dict.fromkeys(self._sums, 1.0)\n"
            "            release_sums(self._sums, noise, bits, scales=ones, parameters={})\n"
            "            for name, total in self._sums.items():\n"
            "                self._ranks.add_up(total)\n"
            "                total *= scales[name]\n"
            "                if name in parameters:\n"
            "                    parameters[name].add_(total)\n"
            "                    total.zero_()\n"
        },
        TEST + "TestNoise::test_noise_of_the_planned_variance_enters_once[2]",
    ),
    Fault(
        "noise of no process",
        JOINT,
        {
            "            release(part, None, scale, randomness)\n": "            part *= chunk.scale\n"
        },
        TEST + "TestNoise::test_noise_of_the_planned_variance_enters_once[2]",
    ),
    Fault(
        "no noise on the part of the last process",
        JOINT,
        {
            "            release(part, None, scale, randomness)\n": ""
            "            if ranks.rank < ranks.size - 1:\n"
            "                release(part, None, scale, randomness)\n"
            "            else:\n"
            "                part *= chunk.scale\n"
        },
        TEST + "TestNoise::test_every_part_of_every_parameter_has_noise[2]",
    ),
    Fault(
        "each process draws from all examples",
        "plan.py",
        {"        part = ranks.part_of(len(columns))\n": "        part = range(len(columns))\n"},
        TEST + "TestSampling::test_each_example_is_drawn_by_one_process[2]",
    ),
    Fault(
        "the mean of the processes' sums",
        RANKS,
        {"                total += part\n": "                total += part / self.size\n"},
        TEST + "test_all_processes_end_with_the_weights_of_one[2-loop-sgd]",
    ),
    Fault(
        "the sum of one process",
        RANKS,
        {"                total += part\n": "                pass\n"},
        TEST + "test_all_processes_end_with_the_weights_of_one[2-loop-sgd]",
    ),
    Fault(
        "a ledger in every process",
        "training/group.py",
        {"        if ledger is not None and not ranks.is_first:\n": "        if False:\n"},
        TEST + "TestRefusals::test_a_second_ledger_is_refused",
    ),
    Fault(
        "batches that were drawn without the group",
        "mechanisms/drawn.py",
        {"    if (draw.rank, draw.ranks) != (rank, ranks):\n": "    if False:\n"},
        TEST + "TestRefusals::test_every_process_says_what_is_wrong[local draws]",
    ),
    Fault(
        "the same data in another order in every process",
        "plan.py",
        {
            '{"the data": sample_of(columns) if ranks.are_several else ""}': '{"the data": ""}',
        },
        TEST + "TestRefusals::test_every_process_says_what_is_wrong[shuffled]",
    ),
    Fault(
        "processes of a launcher that made no group",
        RANKS,
        {'"WORLD_SIZE", "1")) if "RANK" in os.environ else 1': '"NONE", "1"))'},
        TEST + "test_a_launcher_without_a_group_is_refused",
    ),
    Fault(
        "a digest of the weights that does not see their order",
        "training/group.py",
        {
            "        digest.update(flat.view(torch.uint8).numpy())\n": ""
            "        digest.update(flat.view(torch.uint8).sort().values.numpy())\n"
        },
        TEST + "TestRefusals::test_every_process_says_what_is_wrong[other order]",
    ),
    Fault(
        "a charge that comes when the processes have the noisy sums",
        STEP,
        {
            "            with self._ranks.together():  # no process goes on before the first one's ledger\n"
            "                self._charge(draw)\n"
            "            self.update.release(noise, self._noise, kl_by_name)\n": ""
            "            self.update.release(noise, self._noise, kl_by_name)\n"
            "            with self._ranks.together():\n"
            "                self._charge(draw)\n"
        },
        TEST
        + "TestDeath::test_the_launcher_s_restart_goes_on_and_counts_what_was_lost"
        + "[fitted:7@0@charged]",
    ),
    Fault(
        "a restart of the launcher with a folder and a budget of its own",
        "cli/train.py",
        {"    start = name_of_launch() or f": "    start = f"},
        "tests/distributed/test_commands.py::TestRestart::"
        "test_a_restart_that_knows_no_folder_is_refused",
    ),
]
