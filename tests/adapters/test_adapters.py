"""A gate inside LangChain, LangGraph, Haystack, LlamaIndex and DSPy: a pipeline of each takes both branches.

The frameworks are in their own environment: ``make test-adapters``.
"""

import asyncio
from importlib.util import find_spec
from typing import TypedDict

import pytest
from serve_support import KNOWN, NEEDS


def needs(framework):
    """Skip before the gate is built: a mark is read before fixtures, ``importorskip`` in the test after them."""
    return pytest.mark.skipif(
        find_spec(framework) is None, reason=f"{framework} is not installed; run: make test-adapters"
    )


@needs("langchain_core")
def test_langchains_retriever_searches_where_the_gate_asks_for_it(gate):
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    from kbtrain.adapters.langchain import GatedRetriever

    class Found(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return [Document(page_content=f"about: {query}")]

    chain = GatedRetriever(gate=str(gate), retriever=Found()) | (lambda found: [one.page_content for one in found])
    assert chain.invoke(NEEDS) == [f"about: {NEEDS}"]
    assert chain.invoke(KNOWN) == []
    assert asyncio.run(chain.ainvoke(NEEDS)) == [f"about: {NEEDS}"]
    assert asyncio.run(chain.ainvoke(KNOWN)) == []


@needs("langgraph")
def test_langgraphs_edge_leads_to_search_or_to_answer(gate):
    from langgraph import graph as graphs

    from kbtrain.adapters.langchain import edge

    class State(TypedDict):
        question: str
        went: str

    graph = graphs.StateGraph(State)
    graph.add_node("search", lambda state: {"went": "search"})
    graph.add_node("answer", lambda state: {"went": "answer"})
    graph.add_conditional_edges(graphs.START, edge(gate))
    graph.add_edge("search", graphs.END)
    graph.add_edge("answer", graphs.END)
    compiled = graph.compile()
    assert compiled.invoke({"question": NEEDS})["went"] == "search"
    assert compiled.invoke({"question": KNOWN})["went"] == "answer"


@needs("haystack")
def test_haystacks_component_runs_one_branch_and_is_written_and_read_again(gate):
    import haystack
    from haystack.components.builders import PromptBuilder

    from kbtrain.adapters.haystack import RetrievalGate

    pipeline = haystack.Pipeline()
    pipeline.add_component("gate", RetrievalGate(str(gate)))
    for branch in ("search", "answer"):
        pipeline.add_component(branch, PromptBuilder(branch + ": {{ query }}", required_variables=["query"]))
        pipeline.connect(f"gate.{branch}", f"{branch}.query")
    pipeline = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["kbtrain.*"])
    for run in (pipeline.run, lambda data: asyncio.run(pipeline.run_async(data))):
        assert {"search"} == set(run({"gate": {"query": NEEDS}})) - {"gate"}
        assert {"answer"} == set(run({"gate": {"query": KNOWN}})) - {"gate"}


@needs("llama_index")
def test_llamaindexs_router_and_query_engine_take_both_branches(gate):
    from llama_index.core.base.response.schema import Response
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import CustomQueryEngine, RouterQueryEngine
    from llama_index.core.tools import QueryEngineTool

    from kbtrain.adapters.llama_index import GatedQueryEngine, GateSelector

    class Says(CustomQueryEngine):
        text: str

        def custom_query(self, query_str):
            return Response(response=self.text)

    tools = [QueryEngineTool.from_defaults(Says(text=text), description=text) for text in ("plain", "searched")]
    router = RouterQueryEngine(GateSelector(gate), tools, llm=MockLLM())
    assert str(router.query(NEEDS)) == "searched"
    assert str(router.query(KNOWN)) == "plain"
    engine = GatedQueryEngine(gate=str(gate), engine=Says(text="searched"), llm=MockLLM())
    for ask in (engine.query, lambda question: asyncio.run(engine.aquery(question))):
        assert str(ask(NEEDS)) == "searched"
        assert str(ask(KNOWN)) == KNOWN  # this model repeats its prompt


@needs("dspy")
def test_dspys_module_searches_where_the_gate_asks_for_it(gate):
    import dspy
    from dspy.utils import DummyLM

    from kbtrain.adapters.dspy import Gated

    searched = []

    def search(question):
        searched.append(question)
        return ["a passage"]

    module = Gated(gate, search)
    with dspy.context(lm=DummyLM([{"answer": "an answer"}] * 4)):
        found = [module(question=NEEDS), module(question=KNOWN)]
        found.append(asyncio.run(module.acall(question=NEEDS)))
    assert [one.retrieved for one in found] == [True, False, True]
    assert {one.answer for one in found} == {"an answer"}
    assert searched == [NEEDS, NEEDS]
