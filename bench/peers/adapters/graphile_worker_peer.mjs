// graphile-worker on PostgreSQL; it deletes the rows of finished jobs.
// Settings: `concurrency`, `localQueue` (jobs fetched ahead), `batchDelayMs` (completions written together).
// Its delay before a retry is fixed (from one second on), so the retry measure waits for that.
import * as adapting from './adapting.mjs'

const { run, makeWorkerUtils, Logger } = adapting.load('graphile-worker')
const pg = adapting.load('pg')
const logger = new Logger(() => () => {})
const POOL_CONNECTIONS = 10

async function withUtils (work) {
  const utils = await makeWorkerUtils({ connectionString: adapting.url, logger })
  return work(utils, (number, sent, kind) => utils.addJob(kind, { number, sent }))
}

await adapting.main({
  prepare: () => withUtils(utils => utils.migrate()),
  fill: (work, count) => withUtils(utils => adapting.fill(work, count, (kind, numbers) =>
    utils.addJobs(numbers.map(number => ({ identifier: kind, payload: { number, sent: 0 } }))))),
  enqueue: count => withUtils((_, send) => adapting.enqueue(count, send)),
  callers: count => withUtils((_, send) => adapting.callers(count, send)),
  pace: count => withUtils((_, send) => adapting.pace(count, send)),
  work: async () => {
    const worker = {}
    const ahead = adapting.setting('localQueue', 0)
    if (ahead) worker.localQueue = { size: ahead }
    const delay = adapting.setting('batchDelayMs', -1)
    if (delay >= 0) Object.assign(worker, { completeJobBatchDelay: delay, failJobBatchDelay: delay })
    const pgPool = new pg.Pool({ connectionString: adapting.url, max: POOL_CONNECTIONS })
    for (const event of ['error', 'connect']) pgPool.on(event, () => {})
    await run({
      pgPool,
      logger,
      noHandleSignals: true,
      concurrency: adapting.setting('concurrency', 10),
      preset: { worker },
      taskList: {
        noop: async () => adapting.tally.ended(),
        latency: async job => adapting.tally.arrived(job.sent),
        retry: async job => adapting.tally.failTwice(job.number)
      }
    })
  }
})
