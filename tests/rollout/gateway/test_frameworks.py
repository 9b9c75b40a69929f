"""Unmodified programs of agent frameworks as episodes: `make agents-test`."""

import gc

import pytest

pytest.importorskip("langgraph", reason="agent frameworks are not installed; `make agents-test` runs these tests")

import agents
import smolagents
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from rollout.gateway.scripted import one_path, run, tool_call

pytestmark = [pytest.mark.agents, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # of their HTTP clients
agents.set_tracing_disabled(True)
QUESTION = "What is 2 + 40?"
ANSWER = "It is 42."
calls = []


@pytest.fixture(autouse=True)
def _forgotten_clients():
    """Free the HTTP clients that frameworks do not close while the warnings about them are ignored."""
    calls.clear()
    yield
    gc.collect()


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first one.
        b: The second one.
    """
    calls.append((a, b))
    return a + b


def openai_agent(client, *, chat):
    model = agents.OpenAIChatCompletionsModel if chat else agents.OpenAIResponsesModel
    tools = [agents.function_tool(add)]
    return agents.Agent(name="adder", instructions="Use the tool.", model=model("policy", client), tools=tools)


async def run_openai_agent(client, **settings):
    return (await agents.Runner.run(openai_agent(client, **settings), QUESTION)).final_output


async def stream_openai_agent(client, **settings):
    result = agents.Runner.run_streamed(openai_agent(client, **settings), QUESTION)
    async for _ in result.stream_events():
        pass
    return result.final_output


def pydantic_agent(client, api, **settings):
    if api == "messages":
        provider = AnthropicProvider(base_url=str(client.base_url).removesuffix("/v1/"), api_key=client.api_key)
        model = AnthropicModel("policy", provider=provider)
    else:
        model_class = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        model = model_class("policy", provider=OpenAIProvider(openai_client=client))
    return Agent(model, instructions="Use the tool.", tools=[add], **settings)


async def run_pydantic(client, api, **settings):
    return (await pydantic_agent(client, api, **settings).run(QUESTION)).output


async def stream_pydantic(client, api):
    async def read(context, events):
        async for _ in events:
            pass

    return (await pydantic_agent(client, api).run(QUESTION, event_stream_handler=read)).output


async def run_langgraph(client, **settings):
    model = ChatOpenAI(model="policy", base_url=str(client.base_url), api_key=client.api_key, **settings)
    model = model.bind_tools([add])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    result = await graph.compile().ainvoke({"messages": [("user", QUESTION)]})
    return result["messages"][-1].text


PROGRAMS = {
    "openai-agents": lambda client: run_openai_agent(client, chat=False),
    "openai-agents chat": lambda client: run_openai_agent(client, chat=True),
    "openai-agents stream": lambda client: stream_openai_agent(client, chat=False),
    "openai-agents chat stream": lambda client: stream_openai_agent(client, chat=True),
    "pydantic-ai": lambda client: run_pydantic(client, "chat"),
    "pydantic-ai responses": lambda client: run_pydantic(client, "responses"),
    "pydantic-ai messages": lambda client: run_pydantic(client, "messages"),
    "pydantic-ai stream": lambda client: stream_pydantic(client, "chat"),
    "pydantic-ai responses stream": lambda client: stream_pydantic(client, "responses"),
    "pydantic-ai messages stream": lambda client: stream_pydantic(client, "messages"),
    "langgraph": run_langgraph,
    "langgraph stream": lambda client: run_langgraph(client, streaming=True),
    "langgraph responses": lambda client: run_langgraph(client, use_responses_api=True),
    "langgraph responses stream": lambda client: run_langgraph(client, use_responses_api=True, streaming=True),
}
ADD = tool_call("add", a=2, b=40)
SCRIPTS = {
    "a call": ([ADD, ANSWER], [(2, 40)]),
    "text and two calls": ([f"I add.\n{ADD}\n{tool_call('add', a=40, b=2)}", ANSWER], [(2, 40), (40, 2)]),
    "a thought": ([f"<think>\nHow?\n</think>\n\n{ADD}", f"<think>\nSo.\n</think>\n\n{ANSWER}"], [(2, 40)]),
    "calls one after another": ([ADD, tool_call("add", b=2, a=40), f" {ANSWER}\n"], [(2, 40), (40, 2)]),
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_calls_its_tools_and_sends_its_history_as_it_was_sampled(program, script):
    responses, expected_calls = SCRIPTS[script]

    async def solve(task, client):
        return float((await PROGRAMS[program](client)).strip() == ANSWER)

    trajectory = run(solve, *responses)["a"]
    assert trajectory.failure is None
    assert (trajectory.score, sorted(calls)) == (1.0, sorted(expected_calls))
    assert one_path(trajectory) == [True] * (len(responses) - 1)


def test_pydantic_ai_with_a_type_of_output():
    async def solve(task, client):
        return float(await run_pydantic(client, "chat", output_type=int) == 42)

    trajectory = run(solve, ADD, tool_call("final_result", response=42))["a"]
    assert (trajectory.score, calls, one_path(trajectory)) == (1.0, [(2, 40)], [True])


SMOLAGENTS = {
    "tools": (smolagents.ToolCallingAgent, [ADD, tool_call("final_answer", answer="42")]),
    "code": (
        smolagents.CodeAgent,
        ["Thought: add\n<code>\nprint(add(2, 40))\n</code>", "<code>\nfinal_answer('42')\n</code>"],
    ),
}


@pytest.mark.parametrize("kind", SMOLAGENTS)
def test_smolagents_rewrites_its_history(kind):
    """It sends each call back as text, with the call's id."""
    agent, responses = SMOLAGENTS[kind]

    def solve(task, client):
        model = smolagents.OpenAIModel("policy", api_base=str(client.base_url), api_key=client.api_key)
        return float(agent([smolagents.tool(add)], model, verbosity_level=0).run(QUESTION) == "42")

    trajectory = run(solve, *responses)["a"]
    assert trajectory.failure is None
    assert (trajectory.score, calls, one_path(trajectory)) == (1.0, [(2, 40)], [False])
    assert run(solve, *responses)["a"].turns == trajectory.turns
