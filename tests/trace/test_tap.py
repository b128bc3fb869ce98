from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import BATCH, COTANGENT, LAYER, RECORDS, CountingStream, leaf, training
from tracerec.errors import SelectionError
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.trace import Trace


@pytest.fixture
def source():
    """A run of six steps."""
    return training()


@pytest.fixture
def trace(source):
    """The run, opened."""
    return Trace(source)


def only(stream):
    """Returns the tap of a trace with one stream."""
    return Trace(MemorySource([stream]))[stream.site.name]


class TestToNumpy:
    def test_values_come_bit_for_bit(self, trace, source):
        """A bfloat16 leaf comes back as ml_dtypes' bfloat16, NaN payloads included."""
        array = trace["layer"].sel(transforms=()).leaf("['b']").to_numpy()
        assert array.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(leaf(source, 0).view(np.uint16), array.view(np.uint16))
        assert array.view(np.uint16)[2, 1] == 0x7FC5

    def test_streams_of_one_shape_are_joined_in_program_order(self, trace, source):
        """The losses of training and evaluation alternate, as in the program."""
        train, evaluation = leaf(source, 2), leaf(source, 3)
        expected = [train[0], evaluation[0], train[1], evaluation[1], *train[2:]]
        np.testing.assert_array_equal(np.array(expected), trace["loss"].to_numpy())

    def test_rows_are_put_in_program_order(self):
        """Two positions of one site in one call arrive the wrong way round."""
        site = Site("x", leaves=(Leaf("", (), "int32"),))
        tap = only(make_stream(site, [[1, 0, 3, 2]], call=[1, 1, 2, 2], position=[1, 0, 1, 0]))
        assert tap.to_numpy().tolist() == [0, 1, 2, 3]
        assert [int(r.value) for r in tap] == [0, 1, 2, 3]

    def test_shape_and_dtype_without_reading(self, source):
        """Both are known from the site."""
        stream = CountingStream(source.streams[1])
        tap = only(stream)
        assert (tap.shape, tap.dtype) == ((RECORDS, 2, 3), np.float32)
        assert (stream.index_rows, stream.leaf_rows) == (0, 0)

    def test_empty_stream(self):
        """A site that never fired gives an array of no records."""
        array = only(make_stream(Site("x", leaves=(Leaf("", (4,), "float16"),)), [np.zeros((0, 4))])).to_numpy()
        assert (array.shape, array.dtype) == ((0, 4), np.float16)

    def test_numpy_takes_a_tap(self, trace):
        """np.asarray is to_numpy, with a dtype if wanted."""
        loss = trace["loss"]
        np.testing.assert_array_equal(loss.to_numpy(), np.asarray(loss))
        assert np.asarray(loss, np.float64).dtype == np.float64

    def test_several_transforms(self, trace):
        """The error has the calls that choose, and they work."""
        with pytest.raises(SelectionError) as caught:
            trace["layer"].to_numpy()
        assert caught.value.choices == (
            "trace['layer'].sel(transforms=())",
            "trace['layer'].sel(transforms=('jvp', 'transpose'))",
        )
        assert str(caught.value).startswith("tap 'layer' has records of different chains of transforms; choose one:")
        assert eval(caught.value.choices[1]).to_numpy().shape == (RECORDS, 2, 3)  # noqa: S307 - our own text

    def test_several_leaves(self, trace):
        """The error has the calls that choose, the selection so far included."""
        with pytest.raises(SelectionError) as caught:
            trace["layer"].sel(transforms=()).to_numpy()
        assert caught.value.choices == (
            "trace['layer'].sel(transforms=()).leaf(\"['b']\")",
            "trace['layer'].sel(transforms=()).leaf(\"['w']\")",
        )

    def test_several_shapes(self, trace, source):
        """The error names the streams with their shapes."""
        with pytest.raises(SelectionError, match=r"trace\['ragged'\]\.streams\[1\]  # array int32\[5\]"):
            trace["ragged"].to_numpy()
        np.testing.assert_array_equal(leaf(source, 5), trace["ragged"].streams[1].to_numpy())

    def test_transforms_that_differ_in_parameters(self):
        """Where names do not tell the chains apart, the error writes them out."""
        chains = [(BATCH,), (Transform("batch", size=8, dims=(0,)),)]
        sites = [Site("x", leaves=(Leaf("", (8,), "int8"),), transforms=chain) for chain in chains]
        tap = Trace(MemorySource([make_stream(site, [np.zeros((1, 8))]) for site in sites]))["x"]
        with pytest.raises(SelectionError, match=r"Transform\(name='batch', size=8, dims=\(0,\)") as caught:
            tap.to_numpy()
        chosen = eval(caught.value.choices[1], {"trace": {"x": tap}, "Transform": Transform})  # noqa: S307 - our own
        assert chosen.sites == (sites[1],)

    def test_no_arrays(self):
        """A record of an empty pytree has no leaf to give."""
        with pytest.raises(SelectionError, match="the value of tap 'x' has no arrays"):
            only(make_stream(Site("x", leaves=(), structure='{"tuple":[]}'), [], steps=[1, 2])).to_numpy()


class TestSel:
    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (20, [20]),
            (slice(10, 30), [10, 20]),
            (slice(None, 20), [0, 10]),
            (slice(40, None), [40, 50]),
            (slice(0, None, 20), [0, 20, 40]),
            ([50, 0, 999], [0, 50]),
            (range(20, 45), [20, 30, 40]),
            (np.array([10]), [10]),
            (10.0, [10]),
        ],
    )
    def test_steps(self, trace, wanted, expected):
        """A step, half-open slices and any iterable of steps."""
        assert trace["layer"].sel(step=wanted, transforms=COTANGENT).steps.tolist() == expected

    def test_values_follow_the_selection(self, trace, source):
        """The rows read are those of the steps."""
        tap = trace["layer"].sel(step=[10, 40]).sel(transforms=COTANGENT)
        np.testing.assert_array_equal(leaf(source, 1)[[1, 4]], tap.to_numpy())

    def test_transforms(self, trace):
        """By name, by value, and by one name for a chain of one."""
        layer = trace["layer"]
        for wanted in (("jvp", "transpose"), COTANGENT, ["jvp", Transform("transpose")]):
            assert layer.sel(transforms=wanted).transforms == (COTANGENT,)
        batched = only(
            make_stream(Site("x", leaves=(Leaf("", (4,), "int8"),), transforms=(BATCH,)), [np.zeros((1, 4))])
        )
        assert len(batched.sel(transforms="batch")) == len(batched.sel(transforms=BATCH)) == 1

    def test_device_call_and_kwargs(self, trace):
        """All that is given must hold."""
        assert len(trace["layer"].sel(device=1)) == RECORDS
        assert trace["layer"].sel(device=0, call=slice(2, 4)).steps.tolist() == [10, 20]
        assert len(trace["loss"].sel(phase="eval")) == 2
        assert len(trace["loss"].sel(phase=["eval", "train"])) == RECORDS + 2
        assert trace["loss"].sel(phase="train", lr=slice(0.15, None)).steps.tolist() == [30, 40, 50]
        assert trace["loss"].sel(lr=0.1, phase="train").steps.tolist() == [0]

    def test_batched_number_matches_by_any_lane(self):
        """A step that vmap batched is an array in each record."""
        column = Column("step", "int32", (2,))
        site = Site("x", leaves=(Leaf("", (2,), "int8"),), columns=(column,), kwargs='{"step":{"slot":0}}')
        tap = only(make_stream(site, [np.zeros((3, 2))], numbers=[[[0, 1], [2, 3], [4, 5]]]))
        assert tap.sel(step=3).steps.tolist() == [[2, 3]]
        assert tap.steps.shape == (3, 2)

    def test_static_tuple_and_number_in_a_container(self):
        """A static tuple is selected by itself, a number in a dict by its column's name."""
        site = Site(
            "x",
            leaves=(Leaf("", (), "int8"),),
            columns=(Column("lr['body']", "float64", python="float"),),
            kwargs='{"axes":{"tuple":["a","b"]},"lr":{"dict":[["body",{"slot":0}]]}}',
        )
        tap = only(make_stream(site, [[1, 2]], numbers=[[0.5, 0.25]]))
        assert len(tap.sel(axes=("a", "b"))) == 2
        assert tap.sel(**{"lr['body']": cast("Any", 0.25)}).to_numpy().tolist() == [2]
        assert tap.sel(lr={"body": 0.5}).to_numpy().tolist() == [1]

    @pytest.mark.parametrize(
        ("tap", "selection", "message"),
        [
            ("layer", {"step": 7}, "step=7 of tap 'layer' was never recorded: its steps are 0..50"),
            ("layer", {"phase": "x"}, "tap 'layer' has no kwarg 'phase'; it has step"),
            ("loss", {"phase": "x"}, "tap 'loss' has no record with phase='x'; it has 'train', 'eval'"),
            ("ragged", {"step": 1}, "tap 'ragged' was recorded without step="),
            (
                "layer",
                {"transforms": "jvp"},
                r"no records with transforms=\('jvp',\); it has \(\), \('jvp', 'transpose'\)",
            ),
            ("layer", {"device": 9}, "no record with device=9; they go from 0 to 1"),
        ],
    )
    def test_nothing_matches(self, trace, tap, selection, message):
        """The error says what there is."""
        with pytest.raises(SelectionError, match=message):
            trace[tap].sel(**selection)

    def test_reads_only_the_rows_selected(self):
        """Ten records of 1 MB out of a hundred: those ten are read."""
        column = Column("step", "int64", python="int")
        site = Site(
            "x", leaves=(Leaf("", (1 << 10, 1 << 8), "float32"),), columns=(column,), kwargs='{"step":{"slot":0}}'
        )
        values = np.zeros((100, 1 << 10, 1 << 8), np.float32)
        stream = CountingStream(make_stream(site, [values], numbers=[range(100)]))
        assert only(stream).sel(step=slice(20, 30)).to_numpy().shape[0] == 10
        assert stream.leaf_rows == 10


class TestRecords:
    def test_partial_record(self, trace, source):
        """A cotangent of one leaf of two: the pytree has None for the other."""
        record = trace["layer"].sel(transforms=COTANGENT)[1]
        assert record.value["b"] is None
        np.testing.assert_array_equal(leaf(source, 1)[1], record.value["w"])
        assert (record.step, record.device, record.call, record.transforms) == (10, 1, 2, COTANGENT)

    def test_kwargs_as_passed(self, trace):
        """Python numbers come back as Python numbers, beside the static ones."""
        record = trace["loss"].sel(phase="train")[-1]
        assert record.kwargs == {"phase": "train", "step": 50, "lr": 0.2}
        assert type(record.kwargs["lr"]) is float

    def test_number_of_a_record(self, trace):
        """Any record can be had by its place; a place that is not there is an IndexError."""
        loss = trace["loss"]
        assert (
            [loss[i].arrival for i in range(len(loss))] == [r.arrival for r in loss] == sorted(r.arrival for r in loss)
        )
        assert loss[-1].arrival == loss[len(loss) - 1].arrival
        with pytest.raises(IndexError, match="record 8 of tap 'loss', which has 8"):
            loss[8]
        for key in ("1", 1.5, True, (1, 2), [1.5], None, slice("a", "b")):
            with pytest.raises(TypeError, match=r"\.sel\(step=\S*\) selects steps"):
                loss[key]

    def test_one_record_reads_one_row(self, source):
        """A record by number does not read its neighbours' tensors."""
        stream = CountingStream(source.streams[1])
        only(stream)[3].value  # noqa: B018 - reading is the point
        assert stream.leaf_rows == 1

    def test_arrays_are_read_only(self, trace):
        """Records share what was read at once, so that writing to one is refused."""
        record = next(iter(trace["layer"].sel(transforms=COTANGENT)))
        with pytest.raises(ValueError, match="read-only"):
            record.arrays[0][0, 0] = 1

    def test_leaf_of_a_record(self, trace):
        """After choosing a leaf, records hold that leaf alone."""
        record = trace["layer"].sel(transforms=()).leaf("['b']")[0]
        assert len(record.arrays) == 1
        assert record.value["w"] is None


class TestLeaf:
    def test_leaves(self, trace):
        """Key paths in order, each once; a bare array's is empty."""
        assert trace["layer"].leaves == ("['b']", "['w']")
        assert trace["loss"].leaves == ("",)

    def test_streams_without_the_leaf_go(self, trace):
        """The cotangent of leaf b does not exist."""
        assert trace["layer"].leaf("['b']").transforms == ((),)
        assert trace["layer"].leaf("['w']").transforms == ((), COTANGENT)

    def test_unknown_leaf(self, trace):
        """The error has the nearest."""
        with pytest.raises(SelectionError, match=r"tap 'layer' has no leaf 'w'; did you mean \"\['w'\]\"\?") as caught:
            trace["layer"].leaf("w")
        assert caught.value.choices == ("['b']", "['w']")


def test_steps_need_a_step_in_every_record(trace):
    """A tap without step says so."""
    with pytest.raises(SelectionError, match="tap 'ragged': not every record has a step"):
        _ = trace["ragged"].steps


def test_repr(trace):
    """The repr has the streams with transforms, shapes and dtypes."""
    assert repr(trace["layer"]).splitlines() == [
        "<tracerec.Tap 'layer': 12 records, 2 streams>",
        "  primal: 6 x ['b'] bfloat16[3], ['w'] float32[2,3]",
        "  jvp, transpose: 6 x ['w'] float32[2,3]",
    ]


def test_sites(trace):
    """The sites are those recorded."""
    assert trace["layer"].sites[0] == LAYER
