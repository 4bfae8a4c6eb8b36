// What an adapter for Node is made of: the same commands, environment and tally files as adapting.py.
// Packages are found from the folder that BENCH_NODE_ROOT names.
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'

const CALLERS = 100
const PACE_MS = 50
const FAILURES = 2
const BULK_CALL = 1000
const FLUSH_MS = 5
const PARENT_LOOK_MS = 1000

export const url = process.env.BENCH_URL
export const load = createRequire(path.join(process.env.BENCH_NODE_ROOT, 'from-here.js'))
const settings = JSON.parse(process.env.BENCH_SETTINGS ?? '{}')
const folder = process.env.BENCH_TALLY

export const setting = (name, otherwise) => settings[name] ?? otherwise
const seconds = () => (performance.timeOrigin + performance.now()) / 1000

class Tally {
  #record = Buffer.alloc(16)
  #ended = 0n
  #file = null
  #changed = false
  #attempts = new Map()

  began () { this.#add(0n) }
  ended () { this.#add(1n) }

  arrived (sent) {
    const late = seconds() - sent
    if (sent) fs.appendFileSync(path.join(folder, `${process.pid}.latencies`), `${late.toFixed(9)}\n`)
    this.#add(1n)
  }

  failTwice (number) {
    this.began()
    const failed = this.#attempts.get(number) ?? 0
    this.#attempts.set(number, failed + 1)
    if (failed < FAILURES) throw new Error('this attempt was meant to fail')
    this.ended()
  }

  #add (jobs) {
    if (this.#file === null) {
      this.#file = fs.openSync(path.join(folder, `${process.pid}.tally`), 'w')
      this.#record.writeDoubleLE(seconds(), 0)
      this.#write()
      setInterval(() => this.#write(), FLUSH_MS).unref()
    }
    this.#ended += jobs
    this.#changed = true
  }

  #write () {
    if (!this.#changed && this.#ended) return
    this.#changed = false
    this.#record.writeBigInt64LE(this.#ended, 8)
    fs.writeSync(this.#file, this.#record, 0, 16, 0)
  }
}
export const tally = new Tally()

async function timed (work) {
  const started = performance.now()
  await work()
  return (performance.now() - started) / 1000
}

// `send(number, sent, work)` stores one job; `sendMany(work, numbers)` stores many in one call.
export async function enqueue (count, send) {
  await send(-1, 0, 'noop')
  return timed(async () => { for (let number = 0; number < count; number++) await send(number, 0, 'noop') })
}

export async function callers (count, send) {
  await send(-1, 0, 'noop')
  let next = 0
  const caller = async () => { while (next < count) await send(next++, 0, 'noop') }
  return timed(() => Promise.all(Array.from({ length: CALLERS }, caller)))
}

export async function pace (count, send) {
  await send(-1, 0, 'latency')
  for (let number = 0; number < count; number++) {
    await new Promise(resolve => setTimeout(resolve, PACE_MS))
    await send(number, seconds(), 'latency')
  }
}

export function fill (work, count, sendMany) {
  return timed(async () => {
    for (let start = 0; start < count; start += BULK_CALL) {
      const numbers = []
      for (let number = start; number < Math.min(start + BULK_CALL, count); number++) numbers.push(number)
      await sendMany(work, numbers)
    }
  })
}

export async function main (adapter) {
  const parent = process.ppid
  setInterval(() => { if (process.ppid !== parent) process.exit(1) }, PARENT_LOOK_MS).unref()
  const [command, ...words] = process.argv.slice(2)
  const result = await adapter[command](...words.map(word => /^\d+$/.test(word) ? Number(word) : word))
  if (command === 'work') await new Promise(() => setInterval(() => {}, PARENT_LOOK_MS))
  console.log(JSON.stringify({ seconds: result ?? null }))
  process.exit(0)
}
