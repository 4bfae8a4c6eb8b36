// pg-boss on PostgreSQL. Settings: `batch` (jobs per fetch), `notify` (LISTEN/NOTIFY instead of polling).
import * as adapting from './adapting.mjs'

const { PgBoss } = adapting.load('pg-boss')
const notify = adapting.setting('notify', false)
const POLL_SECONDS = 0.5
const RETRY = { retryLimit: 5, retryDelay: 0 }

async function withBoss (work) {
  const boss = new PgBoss({ connectionString: adapting.url, schedule: false, useListenNotify: notify })
  boss.on('error', error => console.error(error))
  await boss.start()
  return work(boss, (number, sent, kind) => boss.send(kind, { number, sent }))
}

function outcome (job) {
  try {
    adapting.tally.failTwice(job.data.number)
    return { id: job.id, status: 'completed' }
  } catch {
    return { id: job.id, status: 'failed' }
  }
}

await adapting.main({
  prepare: () => withBoss(async boss => {
    for (const name of ['noop', 'latency', 'retry']) await boss.createQueue(name, notify ? { notify } : {})
  }),
  fill: (work, count) => withBoss(boss => adapting.fill(work, count, (kind, numbers) =>
    boss.insert(kind, numbers.map(number => ({ data: { number, sent: 0 }, ...(kind === 'retry' ? RETRY : {}) }))))),
  enqueue: count => withBoss((_, send) => adapting.enqueue(count, send)),
  callers: count => withBoss((_, send) => adapting.callers(count, send)),
  pace: count => withBoss((_, send) => adapting.pace(count, send)),
  work: kind => withBoss(boss => {
    const options = {
      batchSize: adapting.setting('batch', 1),
      pollingIntervalSeconds: POLL_SECONDS,
      burstWhenBatchFull: true
    }
    const handlers = {
      noop: async jobs => { for (const _ of jobs) adapting.tally.ended() },
      latency: async jobs => { for (const job of jobs) adapting.tally.arrived(job.data.sent) },
      retry: async jobs => jobs.map(outcome)
    }
    return boss.work(kind, { ...options, ...(kind === 'retry' ? { perJobResults: true } : {}) }, handlers[kind])
  })
})
