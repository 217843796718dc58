// A contender's process in Node: the same lines as tenure_loadtests.worker speaks, and of its work `cycles` alone.
import fs from 'node:fs';
import readline from 'node:readline';
import Redis from 'ioredis';
import { createLock, IoredisAdapter } from 'redlock-universal';

const TTL_MS = 30000;
const WARM_S = 0.2;

const setup = JSON.parse(process.argv[2]);
const say = (answer) => fs.writeSync(1, JSON.stringify(answer) + '\n');
const now = () => Number(process.hrtime.bigint()) / 1e9;
const version = (name) => JSON.parse(fs.readFileSync(`node_modules/${name}/package.json`)).version;

function processCpu(pid) {
  try {
    const threads = fs.readdirSync(`/proc/${pid}/task`);
    return threads.reduce((sum, thread) => {
      return sum + Number(fs.readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'ascii').split(' ')[0]) / 1e9;
    }, 0);
  } catch {
    return 0;
  }
}

function machineBusy() {
  try {
    const words = fs.readFileSync('/proc/stat', 'ascii').split('\n', 1)[0].trim().split(/\s+/).slice(1).map(Number);
    const [user, nice, system, , , irq, softirq, steal] = words;
    return (user + nice + system + irq + softirq + steal) / 100;
  } catch {
    return 0;
  }
}

function measure() {
  const cpu = process.cpuUsage();
  return {
    wall: now(),
    client: (cpu.user + cpu.system) / 1e6,
    server: setup.servers.reduce((sum, pid) => sum + processCpu(pid), 0),
    machine: machineBusy(),
    faults: process.resourceUsage().minorPageFault,
  };
}

async function runCycles(locks, seconds) {
  const until = now() + seconds;
  const samples = [];
  await Promise.all(
    locks.map(async (lock) => {
      for (let begun = now(); begun < until; begun = now()) {
        await lock.release(await lock.acquire());
        samples.push(now() - begun);
      }
    }),
  );
  return samples;
}

async function cycles(adapter, { tasks, seconds, prefix }) {
  const locks = Array.from({ length: tasks }, (_, number) =>
    createLock({ adapter, key: `${prefix}:${number}`, ttl: TTL_MS }),
  );
  await runCycles(locks, WARM_S);
  const before = measure();
  const samples = await runCycles(locks, seconds);
  const after = measure();
  samples.sort((one, other) => one - other);
  const at = (share) => samples[Math.min(samples.length - 1, Math.floor(samples.length * share))] * 1e6;
  const wall = after.wall - before.wall;
  const each = (what) => ((after[what] - before[what]) / samples.length) * 1e6;
  return {
    cycles_per_s: samples.length / wall,
    p50_us: at(0.5),
    p99_us: at(0.99),
    client_us: each('client'),
    server_us: each('server'),
    faults: (after.faults - before.faults) / samples.length,
    usage: {
      wall_s: wall,
      client_s: after.client - before.client,
      server_s: after.server - before.server,
      machine_s: after.machine - before.machine,
      faults: after.faults - before.faults,
    },
  };
}

const [host, port] = setup.address.valkey.split(':');
const client = new Redis({ host, port: Number(port) });
const adapter = new IoredisAdapter(client);
await client.ping();
process.chdir(import.meta.dirname ?? new URL('.', import.meta.url).pathname);
say({
  ok: {
    versions: { 'redlock-universal': version('redlock-universal'), ioredis: version('ioredis') },
    runtime: 'node',
    runtime_version: process.version,
  },
});
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { do: work, ...values } = JSON.parse(line);
  if (work === 'quit') break;
  try {
    if (work !== 'cycles') throw new Error(`There is no work '${work}': there is cycles.`);
    say({ ok: await cycles(adapter, values) });
  } catch (error) {
    say({ error: `${error.name}: ${error.message}`, trace: String(error.stack) });
  }
}
client.disconnect();
